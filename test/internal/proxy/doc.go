// Package proxy stands between the program under test and its peers, and is at fault as a network, a gateway or a
// dying server would be, while the test itself still reaches the peer directly.
//
// A [TCP] does not parse what it passes on: it can be away, break connections, and stall. An [HTTP] stands before an
// API server and is at fault with single requests.
package proxy
