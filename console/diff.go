package console

import "strings"

// A contentDiff is what an edit changes in a payload or in headers, line by line.
type contentDiff struct {
	Name  string
	Lines []diffLine
}

// A diffLine is a line that stays, is removed or is added.
type diffLine struct {
	Kind string // stays, removed or added
	Mark string // for people who see no colours
	Text string
}

var diffMarks = map[string]string{"stays": " ", "removed": "−", "added": "+"}

// maxDiffCells limits the work of a comparison. Larger contents are shown as removed and added as a whole.
const maxDiffCells = 4_000_000

// diffContent compares two texts. JSON is compared by its lines once indented, if the indented texts differ.
func diffContent(name, was, is string) contentDiff {
	if a, b := string(indentJSON([]byte(was))), string(indentJSON([]byte(is))); a != b {
		was, is = a, b
	}
	d := contentDiff{Name: name}
	add := func(kind string, lines []string) {
		for _, line := range lines {
			d.Lines = append(d.Lines, diffLine{kind, diffMarks[kind], visibleLines(line)})
		}
	}
	before, after := splitLines(was), splitLines(is)
	same := 0
	for same < len(before) && same < len(after) && before[same] == after[same] {
		same++
	}
	end := 0
	for end < len(before)-same && end < len(after)-same && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	add("stays", before[:same])
	diffLines(before[same:len(before)-end], after[same:len(after)-end], add)
	add("stays", before[len(before)-end:])
	return d
}

// diffLines calls add with the longest common lines, and with those that are removed and added between them.
func diffLines(before, after []string, add func(kind string, lines []string)) {
	n, m := len(before), len(after)
	if n*m > maxDiffCells {
		add("removed", before)
		add("added", after)
		return
	}
	common := make([][]int32, n+1) // common[i][j]: how many lines before[i:] and after[j:] share
	for i := range common {
		common[i] = make([]int32, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if before[i] == after[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < n || j < m {
		switch {
		case i < n && j < m && before[i] == after[j]:
			add("stays", before[i:i+1])
			i, j = i+1, j+1
		case j == m || i < n && common[i+1][j] >= common[i][j+1]:
			add("removed", before[i:i+1])
			i++
		default:
			add("added", after[j:j+1])
			j++
		}
	}
}

func splitLines(text string) []string {
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), "\n")
}
