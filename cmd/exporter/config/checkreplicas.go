package config

import (
	"net"
	"time"
)

// replicas checks what several replicas need.
func (v *validator) replicas() {
	e, r := v.config.LeaderElection, v.config.Replication
	switch {
	case e == nil && r == nil:
		return
	case e == nil:
		v.fault("replication", "needs leaderElection")
		return
	case r == nil:
		v.fault("leaderElection", "needs replication: without it a replica that takes over has no state")
		return
	case v.config.StateDir == "":
		v.fault("leaderElection", "needs stateDir: without it there is no state to take over")
	}
	v.leaseTimes(e)
	host, port, err := net.SplitHostPort(r.Listen)
	otherHost, otherPort, _ := net.SplitHostPort(v.config.Server.Listen) // checked where it belongs
	switch {
	case err != nil:
		v.fault("replication.listen", "must be an address, as host:port or :port%s", v.detail("replication.listen", err))
	case port == otherPort && port != "0" && (host == otherHost || everyHost(host) || everyHost(otherHost)):
		v.fault("replication.listen", "must be another port than that of server.listen")
	}
	switch _, _, invalid := net.SplitHostPort(r.Advertise); {
	case r.Advertise == "" && err == nil && everyHost(host):
		v.fault("replication.advertise", "is required, as listen names no host: \"[${POD_IP}]:8443\"")
	case r.Advertise != "" && invalid != nil:
		v.fault("replication.advertise", "must be an address, as host:port%s", v.detail("replication.advertise", invalid))
	}
}

// everyHost reports whether an address with this host is one of all interfaces.
func everyHost(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }

func (v *validator) leaseTimes(e *LeaderElection) {
	const at = "leaderElection"
	if e.LeaseName == "" && v.has(at+".leaseName") {
		v.fault(at+".leaseName", "must not be empty")
	}
	// Replicas wait for no longer one: what is written into the Lease by hand must not hold them up.
	if e.LeaseDuration < 3*time.Second || e.LeaseDuration > 10*time.Minute || e.LeaseDuration%time.Second != 0 {
		v.fault(at+".leaseDuration", "must be from 3s to 10m, in whole seconds")
	}
	if e.RenewDeadline >= e.LeaseDuration {
		v.fault(at+".renewDeadline", "must be less than leaseDuration")
	}
	// Deliveries pause a second before the Lease ends, unless it was renewed by then.
	if e.RetryPeriod < 100*time.Millisecond || e.RetryPeriod >= e.RenewDeadline || e.RetryPeriod*3 > e.LeaseDuration {
		v.fault(at+".retryPeriod", "must be at least 100ms, at most a third of leaseDuration, and less than renewDeadline")
	}
	// The watch cache of an API server holds 75 s.
	if e.StaleWait < 0 || e.LeaseDuration+e.StaleWait > 70*time.Second {
		v.warn(at+".staleWait", "with leaseDuration is more than 70s: the API server may have forgotten what a late replica needs, which then sends a gap record")
	}
}
