package release

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists the modules that a program is made of, Go's standard library among them, in CycloneDX's JSON. They are what Go
// wrote into the program. There is no time and no serial number, so that the same program has the same bill.
func billOfMaterials(program []byte, version string) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return nil, err
	}
	main := component(cdx.ComponentTypeApplication, info.Main.Path, version)
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(program))}}
	standard, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	modules := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", standard)}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		modules = append(modules, component(cdx.ComponentTypeLibrary, module.Path, module.Version))
	}
	bill := cdx.NewBOM()
	bill.Metadata, bill.Components = &cdx.Metadata{Component: &main}, &modules
	var out bytes.Buffer
	// Scanners read this version; not all of them read later ones.
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bill, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

func component(kind cdx.ComponentType, name, version string) cdx.Component {
	purl := "pkg:golang/" + name + "@" + url.QueryEscape(version)
	return cdx.Component{BOMRef: purl, Type: kind, Name: name, Version: version, PackageURL: purl}
}
