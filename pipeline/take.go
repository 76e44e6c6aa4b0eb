package pipeline

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

// Cancel gives the room back.
func (p *Pipeline) Cancel(t Ticket) {
	if t.item == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeMemory(t.item)
}
