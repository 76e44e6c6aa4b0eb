// Package controlplane runs a real Kubernetes control plane for tests, without containers: etcd and kube-apiserver as
// child processes on loopback, with RBAC and ServiceAccount tokens.
//
// # What is missing
//
// There is no controller manager and no scheduler, unless [ControlPlane.StartControllers] starts them, with few controllers. A
// Deployment makes no ReplicaSets, a deleted namespace stays Terminating and keeps its objects, owners' dependents are not
// collected, and namespaces have no default ServiceAccount. Objects without finalizers are created, changed and deleted as anywhere.
//
// # Why not envtest
//
// controller-runtime's envtest runs the same two binaries, but neither kills an API server the hard way nor starts it
// again on its port with the same certificates, which is what the fault tests are about.
//
// # Making the server forget
//
// A watch from an older position gets a 410 after [ControlPlane.RestartAPIServer], because a new watch cache begins with
// its first list. Without a restart only resources that have no watch cache notice [ControlPlane.CompactEtcd]: core
// Events, and everything under the flag --watch-cache=false.
package controlplane
