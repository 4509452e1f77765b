//go:build race

package hosttest

const raceDetector = true
