//go:build !vm

package e2e

// deeds are what is done to a loop device, at any point of a volume's life.
func (h *host) deeds() []deed {
	return []deed{{"losetup -d", func(_ vol, device string) trace {
		h.sh("losetup", "-d", device)
		return trace{}
	}}}
}
