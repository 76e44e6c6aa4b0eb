module github.com/kubeferry/kubeferry

go 1.26
