// Package drivertest says what every driver must do, as tests: [Run] is the suite that each driver passes. [Fake] is a
// driver whose programs are Go functions; it counts, limits and fails as a test tells it to, and its time may be that of a
// bubble of testing/synctest.
package drivertest
