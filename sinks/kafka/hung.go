package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	// trialInterval is how long a broker that did not answer gets nothing.
	trialInterval = 5 * time.Second
	// slowRequest is how long a request must have waited before its time-out counts against the broker. A request behind others of the same
	// call has less time.
	slowRequest = time.Second
)

// hungBrokers are the brokers that did not answer a request in time. Such a broker gets one request every five seconds. Its other records
// fail at once: a call takes as long as its slowest request, so each call would wait for the time-out, with the records for all brokers.
type hungBrokers struct {
	mu      sync.Mutex // guards what follows
	brokers map[kafka.Broker]*hungBroker
}

type hungBroker struct {
	until time.Time // when it may be tried again
	tried bool      // a trial is under way
}

// begin returns an error if nothing may be sent to the broker now. Otherwise the caller sends one request, and calls end.
func (h *hungBrokers) begin(leader kafka.Broker, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.brokers[leader]
	if b == nil {
		return nil
	}
	if b.tried || now.Before(b.until) {
		return sinks.Transient(sinks.ReasonTimeout, fmt.Errorf("broker %d (%s) did not answer in time, and is tried again every %v",
			leader.ID, net.JoinHostPort(leader.Host, strconv.Itoa(leader.Port)), trialInterval))
	}
	b.tried = true
	return nil
}

// end notes how a request to a broker ended, which began at a time.
func (h *hungBrokers) end(leader kafka.Broker, err error, began, now time.Time) {
	if leader == (kafka.Broker{}) { // the metadata named none
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var answer kafka.Error
	timedOut := err != nil && !errors.As(err, &answer) && reasonOf(err) == sinks.ReasonTimeout
	switch b := h.brokers[leader]; {
	case timedOut && now.Sub(began) >= slowRequest:
		h.brokers[leader] = &hungBroker{until: now.Add(trialInterval)}
	case !timedOut && !errors.Is(err, context.Canceled): // it answered, or the request failed at once
		delete(h.brokers, leader)
	case b != nil:
		b.tried = false
	}
}
