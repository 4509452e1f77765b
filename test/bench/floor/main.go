// Command floor runs commands one after the other and nothing else: what work by
// the same number of processes costs at the least. Commands are separated by
// "--"; one that begins with "via" is started by a further floor, as flexd has
// its tools started by children.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
)

func main() {
	for words := os.Args[1:]; len(words) > 0; {
		end := slices.Index(words, "--")
		if end < 0 {
			end = len(words)
		}
		command := words[:end]
		words = words[min(end+1, len(words)):]
		if command[0] == "via" {
			command = append([]string{"/proc/self/exe"}, command[1:]...)
		}
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%q: %v\n%s", command, err, out)
			os.Exit(1)
		}
	}
	os.Stdout.WriteString("{\"status\":\"Success\"}\n")
}
