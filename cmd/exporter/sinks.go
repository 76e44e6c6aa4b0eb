package main

import (
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

// kinds lists the sinks there are. A new one is its package and a line here.
func kinds() []sinks.Kind {
	return []sinks.Kind{
		kafka.Kind(),
		nats.Kind(),
		webhook.Kind(),
		stdout.Kind(),
		file.Kind(),
	}
}
