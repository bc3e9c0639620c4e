// Package spelling finds the word that was meant.
package spelling

import "strings"

// Nearest is the known word that word was most likely meant to be: the one that takes the fewest single-letter edits, if
// those are no more than a third of its letters (and at least one is allowed); else it is empty. Ties go to the earlier
// word. The work is bounded whatever the length of word.
func Nearest(word string, known []string) string {
	const longest = 64
	if len(word) > longest {
		return ""
	}
	best, bestAt := "", longest
	for _, k := range known {
		if d := edits(strings.ToLower(word), strings.ToLower(k)); d < bestAt && d <= max(1, len(k)/3) {
			best, bestAt = k, d
		}
	}
	return best
}

// edits counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func edits(a, b string) int {
	var before []int
	last, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, make([]int, len(b)+1)
	}
	return last[len(b)]
}
