// Command hello prints one line and exits: the minimal cost of a Go program.
package main

import "os"

func main() { os.Stdout.WriteString("{\"status\":\"Success\"}\n") }
