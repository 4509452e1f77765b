package procfs

import "testing"

func FuzzParse(f *testing.F) {
	f.Add([]byte("pos:\t0\nmnt_id:\t91\n"))
	f.Add([]byte("07:03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseMountID(b)
		hexNumber(string(b))
	})
}
