// Command sbom prints an SPDX document of the modules of executables, as Go recorded
// them. It depends only on the executables and on SOURCE_DATE_EPOCH.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "of the executables")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "Usage: sbom -version VERSION EXECUTABLE...") }
	flag.Parse()
	if *version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	doc, err := describe(*version, flag.Args())
	if err == nil {
		err = doc.write(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// The types are those of SPDX 2.3.
type (
	document struct {
		Version       string         `json:"spdxVersion"`
		License       string         `json:"dataLicense"`
		ID            string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      creation       `json:"creationInfo"`
		Packages      []pkg          `json:"packages"`
		Relationships []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	pkg struct {
		ID        string     `json:"SPDXID"`
		Name      string     `json:"name"`
		Version   string     `json:"versionInfo"`
		Supplier  string     `json:"supplier"`
		Location  string     `json:"downloadLocation"`
		Analyzed  bool       `json:"filesAnalyzed"`
		Concluded string     `json:"licenseConcluded"`
		Declared  string     `json:"licenseDeclared"`
		Copyright string     `json:"copyrightText"`
		Purpose   string     `json:"primaryPackagePurpose"`
		Checksums []checksum `json:"checksums,omitempty"`
		Refs      []ref      `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	ref struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

func (d *document) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

func describe(version string, executables []string) (*document, error) {
	created, err := epoch()
	if err != nil {
		return nil, err
	}
	doc := &document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "flexd-" + version,
		Creation: creation{created.Format(time.RFC3339), []string{"Tool: flexd-packaging-sbom"}},
	}
	modules := map[string]pkg{}
	sums := sha256.New()
	for _, file := range executables {
		exe, info, err := executable(file, version)
		if err != nil {
			return nil, err
		}
		doc.Packages = append(doc.Packages, exe)
		doc.Relationships = append(doc.Relationships, relationship{doc.ID, "DESCRIBES", exe.ID})
		fmt.Fprintln(sums, exe.Checksums[0].Value)
		std := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range append([]*debug.Module{std}, info.Deps...) {
			if m.Replace != nil {
				m = m.Replace
			}
			p := module(m)
			modules[p.ID] = p
			doc.Relationships = append(doc.Relationships, relationship{exe.ID, "DEPENDS_ON", p.ID})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(modules)) {
		doc.Packages = append(doc.Packages, modules[id])
	}
	doc.Namespace = "https://github.com/flexd/flexd/sbom/" + hex.EncodeToString(sums.Sum(nil))
	return doc, nil
}

// epoch returns SOURCE_DATE_EPOCH, the time of the document.
func epoch() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, errors.New("SOURCE_DATE_EPOCH is not set to seconds")
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func executable(file, version string) (pkg, *debug.BuildInfo, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return pkg{}, nil, err
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return pkg{}, nil, err
	}
	sum := sha256.Sum256(text)
	p := described(filepath.Base(file), version, "pkg:golang/"+info.Main.Path+"@"+version+"#cmd/"+filepath.Base(file))
	p.Declared, p.Purpose = "Apache-2.0", "APPLICATION"
	p.Checksums = []checksum{{"SHA256", hex.EncodeToString(sum[:])}}
	return p, info, nil
}

func module(m *debug.Module) pkg {
	return described(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
}

var unusual = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func described(name, version, purl string) pkg {
	return pkg{
		ID: "SPDXRef-" + unusual.ReplaceAllString(name+"-"+version, "-"), Name: name, Version: version,
		Supplier: "NOASSERTION", Location: "NOASSERTION", Concluded: "NOASSERTION", Declared: "NOASSERTION", Copyright: "NOASSERTION",
		Purpose: "LIBRARY", Refs: []ref{{"PACKAGE-MANAGER", "purl", purl}},
	}
}
