// Command cel-environment writes what an expression of Kubernetes may call, as JSON, one overload or macro a line, each with an
// expression that calls it and that Kubernetes compiles.
//
// It asks the environment that every expression of the API server begins with (k8s.io/apiserver/pkg/cel/environment), at the
// version that go.mod pins.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"k8s.io/apiserver/pkg/cel/environment"
)

type line struct {
	// The name of a function or an operator, or of a macro.
	Function string `json:"function,omitempty"`
	Macro    string `json:"macro,omitempty"`
	Overload string `json:"overload,omitempty"`
	// How it is called. Empty if nothing that an expression can write has such arguments.
	Example string `json:"example,omitempty"`
}

// Texts that some functions take instead of any.
var texts = map[string]string{
	"cidr": "10.0.0.0/8", "containsCIDR": "10.0.0.0/8", "isCIDR": "10.0.0.0/8", "ip": "10.0.0.1", "isIP": "10.0.0.1", "containsIP": "10.0.0.1",
	"ip.isCanonical": "10.0.0.1", "duration": "1s", "timestamp": "2026-11-26T00:00:00Z", "quantity": "1", "isQuantity": "1", "semver": "1.0.0",
	"isSemver": "1.0.0", "url": "https://example.com/", "isURL": "https://example.com/", "format.named": "dns1123Label", "int": "1", "uint": "1",
	"double": "1", "bool": "true", "base64.decode": "YQ==",
}

// Values of types that have no literals.
var values = map[string]string{
	"kubernetes.Quantity": "quantity('1')", "kubernetes.URL": "url('https://example.com/')", "kubernetes.Semver": "semver('1.0.0')",
	"kubernetes.NamedFormat": "format.dns1123Label()", "net.IP": "ip('10.0.0.1')", "net.CIDR": "cidr('10.0.0.0/8')",
}

// Overloads whose arguments have to fit together.
var examples = map[string]string{
	"string_format": "'%s'.format(['a'])",
}

// Macros with arguments of which some must be names.
var macros = map[string][]string{
	"has":               {"has({'a': 1}.a)"},
	"all":               {"[1].all(x, x > 0)", "[1].all(i, x, x > 0)"},
	"exists":            {"[1].exists(x, x > 0)", "[1].exists(i, x, x > 0)"},
	"exists_one":        {"[1].exists_one(x, x > 0)"},
	"existsOne":         {"[1].existsOne(i, x, x > 0)"},
	"map":               {"[1].map(x, x)", "[1].map(x, x > 0, x)"},
	"filter":            {"[1].filter(x, x > 0)"},
	"optMap":            {"optional.of(1).optMap(x, x)"},
	"optFlatMap":        {"optional.of(1).optFlatMap(x, optional.of(x))"},
	"bind":              {"cel.bind(x, 1, x)"},
	"sortBy":            {"[1].sortBy(x, x)"},
	"transformList":     {"[1].transformList(i, x, x)", "[1].transformList(i, x, x > 0, x)"},
	"transformMap":      {"{'a': 1}.transformMap(k, v, v)", "{'a': 1}.transformMap(k, v, v > 0, v)"},
	"transformMapEntry": {"{'a': 1}.transformMapEntry(k, v, {k: v})", "{'a': 1}.transformMapEntry(k, v, v > 0, {k: v})"},
}

func sample(function string, of *types.Type) string {
	switch of.Kind() {
	case types.BoolKind:
		return "true"
	case types.IntKind, types.TypeParamKind:
		return "1"
	case types.UintKind:
		return "1u"
	case types.DoubleKind:
		return "1.5"
	case types.StringKind:
		return "'" + cmp.Or(texts[function], "a") + "'"
	case types.BytesKind:
		return "b'a'"
	case types.NullTypeKind:
		return "null"
	case types.DynKind, types.AnyKind:
		return "dyn(1)"
	case types.DurationKind:
		return "duration('1s')"
	case types.TimestampKind:
		return "timestamp('2026-11-26T00:00:00Z')"
	case types.TypeKind:
		return "int"
	case types.ListKind:
		return "[" + sample(function, of.Parameters()[0]) + "]"
	case types.MapKind:
		return "{" + sample(function, of.Parameters()[0]) + ": " + sample(function, of.Parameters()[1]) + "}"
	case types.OpaqueKind:
		if of.TypeName() == "optional_type" {
			return "optional.of(" + sample(function, of.Parameters()[0]) + ")"
		}
	}
	return values[of.TypeName()]
}

// How an overload is called, or nothing.
func example(function string, overload *decls.OverloadDecl) string {
	if known, ok := examples[overload.ID()]; ok {
		return known
	}
	var arguments []string
	for _, of := range overload.ArgTypes() {
		value := sample(function, of)
		if value == "" || strings.Contains(value, "[]") || strings.Contains(value, "{: ") {
			return ""
		}
		arguments = append(arguments, value)
	}
	switch function {
	case operators.Conditional:
		return arguments[0] + " ? " + arguments[1] + " : " + arguments[2]
	case operators.Index:
		return arguments[0] + "[" + arguments[1] + "]"
	case operators.OptIndex:
		return arguments[0] + "[?" + arguments[1] + "]"
	case operators.OptSelect:
		return "{'a': 1}.?a"
	case operators.In:
		return arguments[0] + " in " + arguments[1]
	case operators.LogicalNot:
		return "!" + arguments[0]
	case operators.Negate:
		return "-(" + arguments[0] + ")"
	}
	if symbol, ok := operators.FindReverseBinaryOperator(function); ok {
		return arguments[0] + " " + symbol + " " + arguments[1]
	}
	if overload.IsMemberFunction() {
		return arguments[0] + "." + function + "(" + strings.Join(arguments[1:], ", ") + ")"
	}
	return function + "(" + strings.Join(arguments, ", ") + ")"
}

// Whether an expression compiles, and calls the overload if one is named.
func calls(env *cel.Env, source, overload string) error {
	checked, issues := env.Compile(source)
	if issues.Err() != nil {
		return issues.Err()
	}
	for _, reference := range checked.NativeRep().ReferenceMap() {
		if overload == "" || slices.Contains(reference.OverloadIDs, overload) {
			return nil
		}
	}
	if overload == "" {
		return nil
	}
	return fmt.Errorf("it does not call %s", overload)
}

func run() error {
	// With the libraries of the newest version, which a rollback of the API server might not have.
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).NewExpressionsEnv()
	var lines []line
	for name, function := range env.Functions() {
		// What macros become: nobody can write it, or it has a newer name.
		if strings.Contains(name, "@") && name != operators.In || name == operators.OldIn || name == operators.OldNotStrictlyFalse || name == "in" {
			continue
		}
		for _, overload := range function.OverloadDecls() {
			source := example(name, overload)
			if source != "" {
				if err := calls(env, source, overload.ID()); err != nil {
					return fmt.Errorf("%s, %s: %w", overload.ID(), source, err)
				}
			}
			lines = append(lines, line{Function: name, Overload: overload.ID(), Example: source})
		}
	}
	for _, macro := range env.Macros() {
		sources, known := macros[macro.Function()]
		if !known {
			return fmt.Errorf("the macro %s needs an example", macro.Function())
		}
		for _, source := range sources {
			if err := calls(env, source, ""); err != nil {
				return fmt.Errorf("%s: %w", source, err)
			}
			lines = append(lines, line{Macro: macro.Function(), Example: source})
		}
	}
	slices.SortFunc(lines, func(one, other line) int {
		return cmp.Or(cmp.Compare(one.Macro, other.Macro), cmp.Compare(one.Function, other.Function),
			cmp.Compare(one.Overload, other.Overload), cmp.Compare(one.Example, other.Example))
	})
	lines = slices.Compact(lines)
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return output.Flush()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cel-environment:", err)
		os.Exit(1)
	}
}
