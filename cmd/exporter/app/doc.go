// Package app makes the program's parts from its configuration, joins them, runs them, and takes them down.
package app
