package volopts

import (
	"errors"
	"math/bits"
	"strings"
)

// MaxSize is the largest size of a volume, 4 EiB. A sum of such sizes does not overflow.
const MaxSize = 1 << 62

// ParseSize reads the size of a volume, in bytes. A unit is required and is
// always binary:
//
//	k K Ki KB KiB  m M Mi MB MiB  g G Gi GB GiB  t T Ti TB TiB  p P Pi PB PiB   powers of 1024
//	b B                                                                         bytes
//
// The letters are those of lvcreate -L, to which the well-known script driver passes
// them: "100m" and "100M" are 100 MiB. (In a Kubernetes quantity they are a tenth
// of a byte and 100,000,000 bytes; Ki, Mi, ... are the same.) A number without a unit is
// refused, because it is MiB to lvcreate and bytes to Kubernetes. A fraction ("1.5g") is
// rounded down to whole bytes.
func ParseSize(s string) (int64, error) {
	bad := func(why string) (int64, error) {
		return 0, errors.New(quote(s) + " " + why)
	}
	const form = "is not a size such as 500m, 1.5G or 10Gi"
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(s)
	}
	whole, fraction, dot := strings.Cut(s[:end], ".")
	if whole == "" || len(whole) > 19 || dot && fraction == "" || len(fraction) > 9 || strings.Contains(fraction, ".") {
		return bad(form)
	}
	var shift uint
	switch unit := s[end:]; unit {
	case "":
		return bad("has no unit; write " + quote(s+"m") + " for MiB or " + quote(s+"b") + " for bytes")
	case "b", "B":
	default:
		const letters = "kmgtp"
		i := strings.IndexByte(letters, unit[0]|0x20)
		if end := unit[1:]; i < 0 || end != "" && (unit[0] >= 'a' || end != "i" && end != "B" && end != "iB") {
			return bad(form)
		}
		shift = 10 * uint(i+1)
	}
	var n, tenth, scale uint64 = 0, 0, 1
	for _, c := range []byte(whole) {
		hi, lo := bits.Mul64(n, 10)
		sum, carry := bits.Add64(lo, uint64(c-'0'), 0)
		if hi+carry > 0 {
			return bad("is too large")
		}
		n = sum
	}
	for _, c := range []byte(fraction) {
		tenth = tenth*10 + uint64(c-'0')
		scale *= 10
	}
	hi, lo := bits.Mul64(n, 1<<shift)
	phi, plo := bits.Mul64(tenth, 1<<shift)
	part, _ := bits.Div64(phi, plo, scale) // tenth < scale, so the quotient fits
	sum, carry := bits.Add64(lo, part, 0)
	switch {
	case hi+carry > 0 || sum > MaxSize:
		return bad("is too large")
	case sum == 0:
		return bad("is no size")
	}
	return int64(sum), nil
}
