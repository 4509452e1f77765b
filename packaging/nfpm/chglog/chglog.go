// Package chglog replaces nfpm's reader of changelogs, which links a git client with a
// hundred packages. It is not needed: the changelog is a file of the package.
package chglog

import (
	"errors"
	"text/template"
	"time"
)

// A PackageChangeLog is what nfpm writes.
type PackageChangeLog struct {
	Name    string
	Entries []Entry
}

// An Entry is one version.
type Entry struct {
	Semver, Packager string
	Date             time.Time
}

var errNone = errors.New("changelog: is not built in")

// Parse refuses.
func Parse(string) ([]Entry, error) { return nil, errNone }

// DebTemplate refuses.
func DebTemplate() (*template.Template, error) { return nil, errNone }

// LoadTemplateData refuses.
func LoadTemplateData(string) (*template.Template, error) { return nil, errNone }

// FormatChangelog refuses.
func FormatChangelog(*PackageChangeLog, *template.Template) (string, error) { return "", errNone }
