// The CustomResourceDefinitions of the Prometheus Operator, which are files of this module: see ../../release_test.go. Nothing of it is built.
module github.com/kubeferry/kubeferry/test/deploy/assets/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
