module github.com/kubeferry/kubeferry/test

go 1.26

replace github.com/kubeferry/kubeferry => ../
