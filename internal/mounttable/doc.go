// Package mounttable parses the mount table, and finds the mount that a lookup of a path
// reaches.
//
// It reads procfs and sysfs only, never a mount or a device. It does not decide which
// mounts are flexd's.
package mounttable
