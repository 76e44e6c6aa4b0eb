package replication

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// The annotations of the Lease.
const (
	prefix = "kubeferry.dev/"
	// annotationCluster and annotationClusterUID are whose state it is.
	annotationCluster    = prefix + "cluster"
	annotationClusterUID = prefix + "cluster-uid"
	annotationLineage    = prefix + "lineage"
	// annotationTerm is the leader's.
	annotationTerm = prefix + "term"
	// annotationCommit is <term>/<commit>, the newest that a standby has acknowledged; the leader's own while none is in sync. It has a term of its own because a leader that dies before its first commit leaves
	// states of the term before.
	annotationCommit = prefix + "commit"
	// annotationOffset is what leaders have added to resource versions to make sequences, at most.
	annotationOffset = prefix + "offset"
	// annotationAddress and annotationCertificate are where standbys connect to, and the SHA-256 of the certificate there.
	annotationAddress     = prefix + "address"
	annotationCertificate = prefix + "certificate-sha256"
	// annotationReleased is the term of the leader that gave the Lease up, and holds nothing over any more.
	annotationReleased = prefix + "released"
)

// leaseAnnotations are those of a Lease.
type leaseAnnotations struct {
	cluster, clusterUID string
	claim               Claim // with the term of the commit
	term, offset        uint64
	endpoint            Endpoint
	released            uint64
}

// Endpoint is where a leader serves its standbys.
type Endpoint struct {
	Address string
	// Certificate is the SHA-256 of the server's certificate, in hexadecimal.
	Certificate string
}

// maxAhead is how far terms and commits may be ahead of the clock in microseconds, which terms are made from: thousands of years.
const maxAhead = 1 << 60

// highestOffset leaves room for resource versions and for many more offsets, whatever was forged.
const highestOffset = 1e18

// readAnnotations reads the annotations of a Lease. What makes no sense counts as missing. The bound rises with the clock, so that one more
// than the highest term that was forged makes sense a microsecond later.
func readAnnotations(lease *coordinationv1.Lease, now time.Time) leaseAnnotations {
	a := lease.Annotations
	number := func(text string) uint64 {
		if n, _ := strconv.ParseUint(text, 10, 64); n <= clockTerm(now)+maxAhead {
			return n
		}
		return 0
	}
	offset, _ := strconv.ParseUint(a[annotationOffset], 10, 64) // too large a number is the largest one
	term, commit, _ := strings.Cut(a[annotationCommit], "/")
	return leaseAnnotations{
		cluster: a[annotationCluster], clusterUID: a[annotationClusterUID],
		claim: Claim{
			Lineage: a[annotationLineage], Term: number(term), Commit: number(commit),
		},
		term: number(a[annotationTerm]), offset: min(offset, highestOffset), released: number(a[annotationReleased]),
		endpoint: Endpoint{a[annotationAddress], a[annotationCertificate]},
	}
}

// clockTerm returns a clock's time as a term.
func clockTerm(now time.Time) uint64 { return uint64(max(0, now.UnixMicro())) }

// write replaces the annotations of a Lease.
func (r *leaseAnnotations) write(lease *coordinationv1.Lease) {
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	for name, value := range map[string]string{
		annotationCluster: r.cluster, annotationClusterUID: r.clusterUID,
		annotationLineage: r.claim.Lineage, annotationTerm: strconv.FormatUint(r.term, 10),
		annotationCommit:  fmt.Sprintf("%d/%d", r.claim.Term, r.claim.Commit),
		annotationAddress: r.endpoint.Address, annotationCertificate: r.endpoint.Certificate,
		annotationOffset:   strconv.FormatUint(r.offset, 10),
		annotationReleased: strconv.FormatUint(r.released, 10),
	} {
		lease.Annotations[name] = value
	}
}
