// Command pod is the only program in the image of the tests' pods. `pod NAME` keeps
// a diary in /data, where its volume is:
//
//	log        "NAME starts" and "NAME ends", below what others wrote before
//	NAME.beat  a number that grows, for as long as it can write
//	NAME.exit  when this file exists, it exits with status 1
//
// Without a name it is the container that holds a pod together, and sleeps.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) < 2 {
		<-end
		return
	}
	d := diary{name: os.Args[1]}
	d.write("starts")
	for n := 1; ; n++ {
		d.beat(n)
		select {
		case <-end:
			d.write("ends")
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

type diary struct{ name string }

// write appends a line, durably: it is there after a power cut.
func (d diary) write(what string) {
	f, err := os.OpenFile("/data/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err)
	_, err = fmt.Fprintf(f, "%s %s\n", d.name, what)
	must(err)
	must(f.Sync())
	must(f.Close())
}

func (d diary) beat(n int) {
	must(os.WriteFile("/data/"+d.name+".beat", fmt.Appendf(nil, "%09d", n), 0o644))
	if os.Remove("/data/"+d.name+".exit") == nil {
		os.Exit(1)
	}
}

// must ends the container, which a test sees: the next one starts.
func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}
