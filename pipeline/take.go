package pipeline

import "slices"

// Take hands over what the ticket was made for. It never blocks.
func (p *Pipeline) Take(t Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.filtered {
		p.counts.Received++
		p.counts.Filtered++
		p.counts.filteredBy[t.filter]++
		if t.spoils != "" {
			p.counts.spoilSnapshot(t.spoils)
		}
		return
	}
	if t.item == nil {
		return
	}
	p.place(t.item)
	p.counts.take(t.item)
}

// place puts a taken item where it belongs.
func (p *Pipeline) place(i *item) {
	l := &p.log
	i.seq = l.next
	l.next++
	if p.options.Log != nil {
		if len(l.fresh) >= l.sweep { // what was settled meanwhile need not be kept for the commit
			l.fresh = slices.DeleteFunc(l.fresh, func(i *item) bool { return i.settled })
			l.sweep = max(1024, 2*len(l.fresh))
		}
		l.fresh = append(l.fresh, i)
	}
	leaves := l.behind == 0 && p.leaves(i)
	if (l.behind > 0 || leaves) && !i.buffered { // what is before it went to the log since the room was reserved
		p.budget.memory -= i.size
		p.budget.buffered += i.size
		i.buffered = true
	}
	if !i.buffered {
		p.backlog.add(i, &p.backlog.arrivals)
		return
	}
	if leaves {
		p.leave(i)
	} else {
		p.buffer(i)
	}
	if p.budget.buffered > maxBuffered/2 {
		p.options.Log.Commit()
	}
}

// buffer puts an item behind the cursor.
func (p *Pipeline) buffer(i *item) {
	l := &p.log
	if l.behind == 0 {
		l.cursor, l.lastRead = i.seq, i.observed
	}
	l.behind++
	l.unwritten = append(l.unwritten, i)
	if l.cursor >= l.written {
		l.wakeReader()
	}
}

// Cancel gives the room back.
func (p *Pipeline) Cancel(t Ticket) {
	if t.item == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeMemory(t.item)
}
