// Command cel-conformance writes the CEL specification's conformance tests as JSON, one case a line.
//
// It reads tests/simple/testdata of the module cel.dev/expr, at the version that go.mod pins, and leaves out what is about
// Protocol Buffers: Kubernetes' expressions have no messages, enums or containers of their own. The first line counts what it
// leaves out, by reason.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"cel.dev/expr"
	_ "cel.dev/expr/conformance/proto2"
	_ "cel.dev/expr/conformance/proto3"
	"cel.dev/expr/conformance/test"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const module = "cel.dev/expr"

// A value: its kind, and what it holds. Numbers are text, so that no reader rounds them.
type value map[string]any

type testCase struct {
	Name string `json:"name"`
	Expr string `json:"expr"`
	// Whether the expression is evaluated without being checked first.
	Unchecked bool `json:"unchecked,omitempty"`
	// Whether it is only checked.
	CheckOnly bool             `json:"check_only,omitempty"`
	Bindings  map[string]value `json:"bindings,omitempty"`
	// What it yields; nothing if evaluating it fails.
	Value value `json:"value,omitempty"`
}

type header struct {
	Module string         `json:"module"`
	Cases  int            `json:"cases"`
	Left   map[string]int `json:"left_out"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cel-conformance:", err)
		os.Exit(1)
	}
}

func run() error {
	found, err := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}} {{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("finding the module %s (run this program in its own directory): %w", module, err)
	}
	fields := strings.Fields(string(found))
	if len(fields) != 3 {
		return fmt.Errorf("the module %s is not downloaded", module)
	}
	files, err := filepath.Glob(filepath.Join(fields[2], "tests/simple/testdata/*.textproto"))
	if err != nil {
		return err
	}
	sort.Strings(files)
	var cases []testCase
	left := map[string]int{}
	for _, file := range files {
		if err := read(file, &cases, left); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	return write(header{Module: fields[0] + "@" + fields[1], Cases: len(cases), Left: left}, cases)
}

func read(file string, cases *[]testCase, left map[string]int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var tests test.SimpleTestFile
	if err := prototext.Unmarshal(text, &tests); err != nil {
		return err
	}
	for _, section := range tests.Section {
		for _, one := range section.Test {
			converted, reason := convert(one)
			if reason != "" {
				left[reason]++
				continue
			}
			converted.Name = strings.Join([]string{tests.Name, section.Name, one.Name}, "/")
			*cases = append(*cases, converted)
		}
	}
	return nil
}

func write(first header, cases []testCase) error {
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(first); err != nil {
		return err
	}
	for _, one := range cases {
		if err := encoder.Encode(one); err != nil {
			return err
		}
	}
	return out.Flush()
}

var (
	messages  = regexp.MustCompile(`TestAllTypes|NestedTestAllTypes|TestRequired|google\.protobuf\.|cel\.expr\.|proto\.(has|get)Ext|\b(GlobalEnum|GoFastEnum|NestedEnum)\b`)
	typeNames = regexp.MustCompile(`\btype\(`)
	block     = regexp.MustCompile(`cel\.(block|index|iterVar|accuVar)\(`)
)

// Messages that CEL itself knows as types of its own.
var times = strings.NewReplacer("google.protobuf.Duration", "", "google.protobuf.Timestamp", "")

const (
	aboutMessages   = "protobuf messages and enums"
	aboutTypes      = "types as values"
	aboutContainers = "containers and names with dots"
	aboutFunctions  = "functions that only the test declares"
	aboutUnknowns   = "unknown values of partial evaluation"
	aboutMacros     = "macros switched off"
	aboutBlock      = "cel.block, which only an optimizer writes"
)

// convert makes a case of a test, or says why it is left out.
func convert(one *test.SimpleTest) (testCase, string) {
	converted := testCase{Expr: one.Expr, Unchecked: one.DisableCheck, CheckOnly: one.CheckOnly}
	switch {
	case messages.MatchString(one.Expr):
		return converted, aboutMessages
	case one.Container != "":
		return converted, aboutContainers
	case block.MatchString(one.Expr):
		return converted, aboutBlock
	case typeNames.MatchString(one.Expr):
		return converted, aboutTypes
	case one.DisableMacros:
		return converted, aboutMacros
	}
	if reason := undeclarable(one.TypeEnv); reason != "" {
		return converted, reason
	}
	for name, bound := range one.Bindings {
		if strings.Contains(name, ".") {
			return converted, aboutContainers
		}
		if bound.GetValue() == nil {
			return converted, aboutUnknowns
		}
		binding, reason := convertValue(bound.GetValue())
		if reason != "" {
			return converted, reason
		}
		if converted.Bindings == nil {
			converted.Bindings = map[string]value{}
		}
		converted.Bindings[name] = binding
	}
	var reason string
	switch wanted := one.ResultMatcher.(type) {
	case nil:
		converted.Value = value{"bool": true}
	case *test.SimpleTest_Value:
		converted.Value, reason = convertValue(wanted.Value)
	case *test.SimpleTest_TypedResult:
		if one.CheckOnly {
			break
		}
		converted.Value, reason = convertValue(wanted.TypedResult.Result)
	case *test.SimpleTest_EvalError, *test.SimpleTest_AnyEvalErrors:
	default:
		reason = aboutUnknowns
	}
	return converted, reason
}

// undeclarable says which of the declarations cannot be made without Protocol Buffers or functions of one's own.
func undeclarable(declarations []*expr.Decl) string {
	for _, declared := range declarations {
		switch {
		case declared.GetFunction() != nil:
			return aboutFunctions
		case strings.Contains(declared.Name, "."):
			return aboutContainers
		case messages.MatchString(times.Replace(declared.GetIdent().GetType().String())):
			return aboutMessages
		}
	}
	return ""
}

func convertValue(given *expr.Value) (value, string) {
	switch kind := given.GetKind().(type) {
	case *expr.Value_NullValue:
		return value{"null": true}, ""
	case *expr.Value_BoolValue:
		return value{"bool": kind.BoolValue}, ""
	case *expr.Value_Int64Value:
		return value{"int": strconv.FormatInt(kind.Int64Value, 10)}, ""
	case *expr.Value_Uint64Value:
		return value{"uint": strconv.FormatUint(kind.Uint64Value, 10)}, ""
	case *expr.Value_DoubleValue:
		return value{"double": strconv.FormatFloat(kind.DoubleValue, 'g', -1, 64)}, ""
	case *expr.Value_StringValue:
		return value{"string": kind.StringValue}, ""
	case *expr.Value_BytesValue:
		return value{"bytes": base64.StdEncoding.EncodeToString(kind.BytesValue)}, ""
	case *expr.Value_ListValue:
		return convertList(kind.ListValue.Values)
	case *expr.Value_MapValue:
		return convertMap(kind.MapValue.Entries)
	case *expr.Value_TypeValue:
		return nil, aboutTypes
	case *expr.Value_ObjectValue:
		message, err := kind.ObjectValue.UnmarshalNew()
		if err != nil {
			return nil, aboutMessages
		}
		switch message := message.(type) {
		case *durationpb.Duration:
			return value{"duration": seconds(message.Seconds, message.Nanos)}, ""
		case *timestamppb.Timestamp:
			return value{"timestamp": seconds(message.Seconds, message.Nanos)}, ""
		}
	}
	return nil, aboutMessages
}

// seconds gives seconds and the nanoseconds that are added to them.
func seconds(whole int64, nanos int32) string {
	return fmt.Sprintf("%d+%d", whole, nanos)
}

func convertList(items []*expr.Value) (value, string) {
	list := []value{}
	for _, item := range items {
		converted, reason := convertValue(item)
		if reason != "" {
			return nil, reason
		}
		list = append(list, converted)
	}
	return value{"list": list}, ""
}

func convertMap(entries []*expr.MapValue_Entry) (value, string) {
	pairs := [][]value{}
	for _, entry := range entries {
		pair, reason := convertList([]*expr.Value{entry.Key, entry.Value})
		if reason != "" {
			return nil, reason
		}
		pairs = append(pairs, slices.Clone(pair["list"].([]value)))
	}
	return value{"map": pairs}, ""
}
