// Command hello prints one line and exits: the least that a Go program costs.
package main

import "os"

func main() { os.Stdout.WriteString("{\"status\":\"Success\"}\n") }
