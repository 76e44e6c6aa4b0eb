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
	timeout time.Duration // of a request

	mu    sync.Mutex // guards until
	until map[kafka.Broker]time.Time
}

// begin returns an error if nothing may be sent to the broker now. Otherwise the caller sends one request, and calls end.
func (h *hungBrokers) begin(leader kafka.Broker, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, hung := h.until[leader]
	if !hung {
		return nil
	}
	if now.Before(until) {
		return sinks.Transient(sinks.ReasonTimeout, fmt.Errorf("broker %d (%s) did not answer in time, and is tried again every %v",
			leader.ID, net.JoinHostPort(leader.Host, strconv.Itoa(leader.Port)), trialInterval))
	}
	h.until[leader] = now.Add(h.timeout + trialInterval) // unless end changes it
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
	switch _, hung := h.until[leader]; {
	case timedOut && now.Sub(began) >= slowRequest:
		h.until[leader] = now.Add(trialInterval)
	case !timedOut && !errors.Is(err, context.Canceled): // it answered, or the request failed at once
		delete(h.until, leader)
	case hung:
		h.until[leader] = now
	}
}
