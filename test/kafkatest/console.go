package kafkatest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// ReadConsole reads the first n records of a topic with the console consumer that comes with Kafka. Keys, values and
// headers must not hold the control characters that it separates them by.
func (b *Broker) ReadConsole(ctx context.Context, topic string, n int) ([]Record, error) {
	b.tb.Helper()
	if b.java == nil {
		b.tb.Skip("no Java, no console consumer")
	}
	const field, header, end, null = "\x1f", "\x1e", "\x1d", "\x1c"
	args := []string{
		"--bootstrap-server", b.Addr(), "--topic", topic, "--from-beginning",
		"--max-messages", strconv.Itoa(n), "--timeout-ms", "60000",
	}
	for _, property := range []string{
		"print.partition=true", "print.offset=true", "print.headers=true", "print.key=true", "print.value=true",
		"key.separator=" + field, "headers.separator=" + header, "line.separator=" + end, "null.literal=" + null,
	} {
		args = append(args, "--formatter-property", property)
	}
	out, err := b.java.run(ctx, "org.apache.kafka.tools.consumer.ConsoleConsumer", args...)
	if err != nil {
		return nil, err
	}
	var records []Record
	for line := range strings.SplitSeq(strings.TrimSuffix(out, end), end) {
		fields := strings.Split(line, field)
		if len(fields) != 5 {
			return nil, fmt.Errorf("the console consumer printed %q", line)
		}
		r := Record{Topic: topic, Headers: map[string]string{}}
		for _, h := range strings.Split(fields[2], header) {
			name, value, _ := strings.Cut(h, ":")
			r.Headers[name] = value
		}
		if fields[3] != null {
			r.Key = []byte(fields[3])
		}
		if fields[4] != null {
			r.Value = []byte(fields[4])
		}
		partition, err1 := strconv.Atoi(strings.TrimPrefix(fields[0], "Partition:"))
		offset, err2 := strconv.ParseInt(strings.TrimPrefix(fields[1], "Offset:"), 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the console consumer printed %q", line)
		}
		r.Partition, r.Offset = int32(partition), offset
		records = append(records, r)
	}
	return records, nil
}
