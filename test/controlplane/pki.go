package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki holds the certificates of one control plane. The same authority signs the API server's certificate and those of
// its clients.
type pki struct {
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	caPEM []byte
	dir   string
}

// newPKI writes what the API server reads into dir: ca.crt, apiserver.crt, apiserver.key and, to sign ServiceAccount
// tokens with, sa.key.
func newPKI(dir string) (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("kubeferry-test-ca")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate authority: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	p := &pki{ca: ca, caKey: key, caPEM: pemBlock("CERTIFICATE", der), dir: dir}

	server := certificate("kube-apiserver")
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)}
	server.DNSNames = []string{"localhost", "kubernetes.default.svc"}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serverCert, serverKey, err := p.issue(server)
	if err != nil {
		return nil, err
	}
	_, saKey, err := p.issue(certificate("service-accounts"))
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{
		"ca.crt": p.caPEM, "apiserver.crt": serverCert, "apiserver.key": serverKey, "sa.key": saKey,
	} {
		if err := os.WriteFile(p.path(name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// client issues a certificate that the API server takes as the given user.
func (p *pki) client(user string, groups ...string) (cert, key []byte, err error) {
	c := certificate(user)
	c.Subject.Organization = groups
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return p.issue(c)
}

func (p *pki) issue(c *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, c, p.ca, &private.PublicKey, p.caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("create the certificate of %s: %w", c.Subject.CommonName, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pemBlock("CERTIFICATE", der), pemBlock("EC PRIVATE KEY", keyDER), nil
}

func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
