// Package mounttable is the mount table: its text parsed, and what a lookup of a path
// reaches there.
//
// It reads procfs and sysfs only, never a mount or a device, and it is not for deciding
// whose a mount is.
package mounttable
