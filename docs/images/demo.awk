# Draws what `nodegate demo --all` prints as an SVG picture: the tables of both fleets, without machines that get the same as the one
# before them, and the forbidden changes. Times are left out, so that the picture changes only when the output does.
#
#   nodegate demo --all | awk -f docs/images/demo.awk > docs/images/demo.svg      (`just picture` does it)
#
# Texts are cut into spans of one colour; a fixed `textLength` keeps columns aligned in every font.

BEGIN {
    COLUMNS = 107; WIDTH = 8.2; HEIGHT = 18; LEFT = 18; TOP = 54
    count = 0; shown = 0; alike = 0
}

function escape(text) {
    gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
    return text
}

# One piece of a line, beginning at a column.
function piece(column, text, class,    columns) {
    if (text == "") return
    columns = text == "…" ? 1 : length(text)
    body = body sprintf("<text x=\"%.1f\" y=\"%d\" textLength=\"%.1f\" class=\"%s\">%s</text>\n", LEFT + column * WIDTH, TOP + count * HEIGHT, columns * WIDTH, class, escape(text))
}

# The words of a line, each where it stands; the first is of another colour in a table's row.
function words(line, first, rest,    at, word, class, start) {
    start = 0; class = first
    while (match(substr(line, start + 1), /[^ ]+( [^ ]+)*/)) {
        word = substr(line, start + RSTART, RLENGTH)
        at = start + RSTART - 1
        if (word == "TIME" || word ~ / ms$/) break
        # The columns of labels, taints and deferred keys come after the node's name.
        piece(at, word, at < 2 ? first : word ~ /:No(Schedule|Execute)$/ ? "taint" : word == "admitted" ? "good" : at > 55 && word ~ /\// ? "deferred" : rest)
        start = at + length(word)
    }
    count++
}

# A sentence, folded at the last column with an indent.
function fold(line, class, indent,    cut, head) {
    head = line
    while (length(head) > COLUMNS) {
        cut = COLUMNS
        while (cut > 40 && substr(head, cut, 1) != " ") cut--
        emit(substr(head, 1, cut - 1), class)
        head = indent substr(head, cut + 1)
    }
    emit(head, class)
}

function emit(line, class,    lead) {
    match(line, /^ */); lead = RLENGTH
    piece(lead, substr(line, lead + 1), class)
    count++
}

/^Fleet / { shown = 1 }
/^Deferred: |^Roles: / { shown = 0 }
/^Forbidden changes/ { shown = 1 }
!shown { next }
{ sub(/ +$/, "") }
/^$/ { count += 0.6; next }
/^(Fleet|Forbidden)/ { fold($0, "title", ""); next }
/^ NODE / { words($0, "dim", "dim"); next }
/^- / { fold($0, "text", "  "); next }
/^  denied: / { fold($0, "bad", "          "); next }
/^  warning: / { fold($0, "dim", "           "); next }
/^  admitted, corrected: / { fold($0, "good", "  "); next }
/^ [a-z]/ { alike = $1 ~ /^(pgmac0[12]|pglenovo02|master-2|gpu-worker-[12])$/ }
alike && $0 ~ /^ [a-z]/ && $1 !~ /2$/ { next }
alike && $0 ~ /^ [a-z]/ { piece(1, "…", "dim"); count++ }
alike { next }
{ words($0, "node", "text") }

END {
    width = LEFT * 2 + COLUMNS * WIDTH; height = TOP + count * HEIGHT
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"What nodegate demo prints: nodes join with their labels and taints, forged labels are corrected, reserved ones are denied\">\n", width, height, width, height
    print "<!-- Drawn by `just picture` from what `nodegate demo` prints; do not edit. -->"
    print "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}.text{fill:#d1d5db}.title{fill:#f9fafb;font-weight:600}.node{fill:#93c5fd;font-weight:600}.dim{fill:#8b949e}.good{fill:#86efac}.bad{fill:#fca5a5}.taint{fill:#fcd34d}.deferred{fill:#c4b5fd}</style>"
    printf "<rect width=\"%d\" height=\"%d\" rx=\"10\" fill=\"#111827\"/>\n", width, height
    print "<circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#ef4444\"/><circle cx=\"37\" cy=\"18\" r=\"5\" fill=\"#f59e0b\"/><circle cx=\"54\" cy=\"18\" r=\"5\" fill=\"#22c55e\"/>"
    printf "<text x=\"76\" y=\"22\" class=\"dim\">$ nodegate demo</text>\n"
    printf "%s</svg>\n", body
}
