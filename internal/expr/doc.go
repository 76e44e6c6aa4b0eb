// Package expr compiles and evaluates the expressions that users write: conditions of filters, and values to set.
//
// The language is CEL, the Common Expression Language, as Kubernetes uses it for admission policies. An expression is
// compiled and checked once, when the configuration is loaded; all that is wrong with it is reported with the place
// in the text, as kubectl shows it. A compiled [Program] may be evaluated by any number of goroutines.
//
// # Variables
//
//	object     the object after the change; for a DELETED the last state
//	oldObject  the object before the change; null if there is none or it is unknown
//	type       "ADDED", "MODIFIED" or "DELETED"
//	resource   resource.group, resource.version, resource.resource
//	snapshot   true for what existed already when a pipeline first saw a watch
//	inferred   true for a change that was worked out, because it was missed
//	changedBy  the field managers that made the change: a list of maps; empty if unknown
//
// # Fields that are not there
//
// Reading a field that an object does not have is an error when the expression is evaluated, as it is in Kubernetes:
// object.metadata.labels.app fails on an object without labels. Write has(object.metadata.labels.app) first, or read
// with object.?metadata.?labels.?app.orValue(""). What becomes of an object whose evaluation fails is not decided here.
//
// # Secrets
//
// An object may be a Secret, and errors end up in logs. So the error of an evaluation ([EvalError]) is made of the expression
// and of nothing else: never of a value of the object.
package expr
