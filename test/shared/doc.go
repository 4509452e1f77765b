// Package shared tests volume groups that several nodes share: virtual machines with one disk,
// sanlock and lvmlockd, and no network.
package shared
