//! The functions.

use cel::common::ast::{CallExpr, Expr, IdedExpr};
use kube_cel::KubeCelExt as _;

use crate::functions::{self, Form, Run};
use crate::tests::{SCHEMA, ask, failure};
use crate::{Expression, Yields};

#[test]
fn every_function_that_is_left_to_the_library_is_there() {
    let context = cel::Context::default().with_all();
    for function in functions::all() {
        if !matches!(function.run, Run::Library | Run::Guarded(_)) {
            continue;
        }
        let part = |expr| IdedExpr { id: 0, expr };
        let target = match function.form {
            Form::Method => Some(Box::new(part(Expr::List(Default::default())))),
            Form::Function | Form::Either => None,
        };
        let call = CallExpr { func_name: function.name.to_owned(), target, args: Vec::new() };
        let result = cel::Value::resolve(&part(Expr::Call(call)), &context);
        let missing = matches!(result, Err(cel::ExecutionError::UndeclaredReference(_)));
        assert!(!missing, "{}", function.name);
    }
}

#[test]
fn a_function_that_kubernetes_lacks_is_named() {
    let unknown = |source: &str| Expression::compile(source, &SCHEMA, Yields::Any).unwrap().unknown_to_kubernetes();
    assert_eq!(unknown("1 + math.abs(-1)").as_deref(), Some("math.abs"));
    assert_eq!(unknown("[b'a'].map(x, base64.encode(x))").as_deref(), Some("base64.encode"));
    assert_eq!(unknown("quantity('1').sign() + math.sign(1)").as_deref(), Some("….sign"));
    assert_eq!(unknown("math.sign(-1)").as_deref(), Some("math.sign"));
    for known in [
        "sign(quantity('1'))",
        "dyn(doc).sign",
        "'math.abs(1)'",
        "dyn(doc).math.abs",
        "dyn(doc).?math.abs",
        "strings.quote('a')",
        "sets.contains([1], [1])",
        "[1].reverse()",
    ] {
        assert_eq!(unknown(known), None, "{known}");
    }
}

#[test]
fn versions_quantities_and_queries_are_read_as_in_kubernetes() {
    for holds in [
        "semver('1.0.0+a') == semver('1.0.0+b') && semver('1.0.0+a').compareTo(semver('1.0.0')) == 0",
        "semver('v007.0', true) == semver('7.0.0') && semver('1', true) == semver('1.0.0')",
        "semver('1.2.03-rc', true) == semver('1.2.3-rc') && semver('0.0', true).major() == 0",
        "!isSemver('1.2-rc', true) && !isSemver('V1.2.3', true) && !isSemver('1.2.3.4', true) && !isSemver('v1.2.3')",
        "isSemver('1.2.3', false) && !isSemver('1.2') && !isSemver('', true)",
        "!quantity('12E').isInteger() && quantity('12').isInteger() && !quantity('1500m').isInteger()",
        "url('/?a=1&b=2&a=3').getQuery() == {'a': ['1', '3'], 'b': ['2']}",
        "url('/?a+b=%2B&c&d;e=1&%zz=1&f=%').getQuery() == {'a b': ['+'], 'c': ['']}",
        "url('/').getQuery().size() == 0 && url('mailto:x').getEscapedPath() == ''",
        "format.date().validate('2024-02-30').value() == ['invalid date']",
        "format.dns1123Label() == format.dns1123Label() && format.date() != format.uuid()",
        "url('h2c+x-1.0://a/b').getScheme() == 'h2c+x-1.0'",
        "url('http://a/b') == url('HTTP://a/b') && url('http://a/b') != url('http://a/')",
    ] {
        assert_eq!(ask(holds).ok(), Some(true), "{holds}");
    }
}

#[test]
fn no_function_is_there_twice() {
    let mut names: Vec<_> = functions::all().map(|function| (function.name, function.form)).collect();
    let count = names.len();
    names.sort_unstable_by_key(|(name, form)| (*name, *form == Form::Method));
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Conditions that hold.
const TRUE: &[&str] = &[
    // Time
    "string(duration('1h30m')) == '5400s' && string(duration('-1.5s')) == '-1.5s' && duration('1us') == duration('1000ns')",
    "string(timestamp('2026-01-02T03:04:05.060Z')) == '2026-01-02T03:04:05.06Z'",
    "string(timestamp('2026-01-02T03:04:05+02:00')) == '2026-01-02T03:04:05+02:00'",
    "timestamp('2026-01-02T03:04:05+02:00') == timestamp('2026-01-02T01:04:05Z') && timestamp(60) > timestamp(0)",
    "timestamp('2024-02-29T12:00:00Z').getDayOfYear() == 59 && timestamp(0).getDayOfWeek() == 4 && timestamp(0).getMonth() == 0",
    "timestamp('2026-01-02T01:04:05Z').getHours('-02:30') == 22 && timestamp(0).getHours('02:00') == 2",
    "duration('90m').getHours() == 1 && duration('90m').getMinutes() == 90 && duration('1.5s').getMilliseconds() == 1500",
    "int(duration('1s')) == 1000000000 && duration(1) == duration('1ns') && timestamp(5) - timestamp(2) == duration('3s')",
    "['bb', 'a', 'ccc'].sortBy(s, -size(s)) == ['ccc', 'bb', 'a'] && [3, 1].sortBy(n, n) == [1, 3] && [].sortBy(n, n) == []",
    "{'package': 1}.package == 1 && has({'namespace': 1}.namespace)",
    "format.named('dns1123Label').value().validate('ok') == optional.none() && !format.named('nope').hasValue()",
    // Numbers as text
    "string(1e6) == '1e+06' && string(100000.0) == '100000' && string(0.00001) == '1e-05' && string(1234567.0) == '1.234567e+06'",
    "string(1.0 / 0.0) == '+Inf' && string(-1.0 / 0.0) == '-Inf' && string(0.0 / 0.0) == 'NaN' && string(-0.0) == '-0'",
    "math.bitShiftLeft(1, 64) == 0 && math.bitShiftRight(-1, 63) == 1 && math.bitNot(0u) == 18446744073709551615u",
    "'%s %s'.format([{'b': [1.5, null], 'a': b'x'}, duration('1m')]) == '{a: x, b: [1.5, null]} 60s'",
    "'%e %.1f %d %x %X'.format([1052.0, 2, -3, 'hé', 255]) == '1.052000e+03 2.0 -3 68c3a9 FF'",
    "2.0 in {2: 'x'} && !(2.5 in {2: 'x'}) && [7, 8][1.0] == 8 && {1u: 'a'}[1.0] == 'a'",
    "math.bitAnd(12, 10) == 8 && math.bitAnd(12u, 10u) == 8u && math.bitOr(12, 10) == 14 && math.bitOr(12u, 10u) == 14u",
    "math.bitXor(12, 10) == 6 && math.bitXor(12u, 10u) == 6u && math.bitNot(5) == -6 && math.bitOr(1, 1) == 1",
    "math.bitShiftLeft(3, 2) == 12 && math.bitShiftLeft(3u, 2) == 12u && math.bitShiftRight(12, 2) == 3 && math.bitShiftRight(12u, 2) == 3u",
    "math.bitShiftLeft(1, 63) < 0 && math.bitShiftRight(1u, 64) == 0u",
    // Formats
    "'%e %e %e'.format([1, 2u, 0.00001]) == '1.000000e+00 2.000000e+00 1.000000e-05' && '%.0e'.format([1e100]) == '1e+100'",
    "'%f %f %f %.0f %.2f'.format([1, 2u, 0.5, 7, 1.005]) == '1.000000 2.000000 0.500000 7 1.00'",
    "'%d %d %d'.format([-1, 2u, 1.5]) == '-1 2 1.5' && '%d'.format([0.0 / 0.0]) == 'NaN'",
    "'%b %b %b %o %o'.format([true, 5, 5u, 8, 9u]) == '1 101 101 10 11' && '%b'.format([-5]) == '-101'",
    "'%x %X %x %X %x'.format([255, 255u, 'é', b'\\xff', -255]) == 'ff FF c3a9 FF -ff'",
    "'%s|%s|%s|%s|%s'.format([null, true, -1, 2u, 1.5]) == 'null|true|-1|2|1.5' && '%s'.format([false]) == 'false'",
    "'%s %s'.format([1.0 / 0.0, -1.0 / 0.0]) == 'Infinity -Infinity' && '%f'.format([1.0 / 0.0]) == 'Infinity'",
    "'%s'.format([{2: 'b', 'a': 1, true: []}]) == '{2: b, a: 1, true: []}' && '%s'.format([[]]) == '[]'",
    "'%s'.format([timestamp(0)]) == '1970-01-01T00:00:00Z' && '100%%'.format([]) == '100%' && '%.3f'.format([2.0]) == '2.000'",
    "'%.100f'.format([0.0]).size() == 102 && 'a%sb%sc'.format(['1', '2']) == 'a1b2c'",
    "string(0.0001) == '0.0001' && string(999999.0) == '999999' && string(-1e-7) == '-1e-07' && string(1e21) == '1e+21'",
    "string(1e100) == '1e+100' && string(-1.5e6) == '-1.5e+06'",
    // Quantities
    "quantity('1E') .isGreaterThan(quantity('999P')) && quantity('1Ei').isGreaterThan(quantity('1E'))",
    "quantity('1k').compareTo(quantity('1000')) == 0 && quantity('1Ki').compareTo(quantity('1024')) == 0",
    "quantity('1M').isLessThan(quantity('1Mi')) && quantity('1G').isLessThan(quantity('1Gi'))",
    "quantity('1T').isLessThan(quantity('1Ti')) && quantity('1P').isLessThan(quantity('1Pi'))",
    "quantity('1000n').compareTo(quantity('1u')) == 0 && quantity('1000u').compareTo(quantity('1m')) == 0",
    "quantity('1e3').compareTo(quantity('1k')) == 0 && quantity('1E3').compareTo(quantity('1k')) == 0 && quantity('-1').sign() == -1",
    "quantity('+1').compareTo(quantity('1')) == 0 && quantity('1e-3').compareTo(quantity('1m')) == 0",
    // At most 22 digits before the point and 12 behind it.
    "isQuantity('1000000000000000000000') && !isQuantity('10000000000000000000000000')",
    "isQuantity('1000E') && !isQuantity('100000E') && isQuantity('1000P') && isQuantity('100Ei') && !isQuantity('10000Ei')",
    "isQuantity('0.001n') && !isQuantity('0.0001n') && isQuantity('0.000001u') && !isQuantity('0.0000001u')",
    "isQuantity('0.000000001m') && !isQuantity('0.0000000001m') && isQuantity('1e-12') && !isQuantity('1e-13')",
    "isQuantity('1e18') && !isQuantity('1e22') && !isQuantity('1e-31') && !isQuantity('0e31')",
    // Conversions
    "string(1) == '1' && string(true) == 'true' && string(1.5) == '1.5' && string(b'a') == 'a' && string('x') == 'x'",
    "int('7') == 7 && int(1.9) == 1 && int(-1.9) == -1 && int(7u) == 7 && uint('7') == 7u && double('1.5') == 1.5",
    "bool('true') && !bool('F') && bytes('a') == b'a' && dyn(1) == 1",
    "int(timestamp('1970-01-01T00:01:00Z')) == 60",
    "size('héllo') == 5 && size(b'\\xff\\x00') == 2 && 'ab'.size() == 2",
    "[1, 2].lastIndexOf(5) == -1 && [].indexOf(1) == -1 && [1, 2, 1].indexOf(1) == 0 && [[1], [2]].indexOf([2]) == 1",
    "timestamp(0).getMinutes('02:30') == 30 && timestamp(0).getMinutes('+00:45') == 45 && timestamp(0).getHours('-01:30') == 22",
    "timestamp(0).getHours('UTC') == 0 && timestamp(0).getDate('-00:01') == 31 && timestamp(0).getFullYear('-00:01') == 1969",
    // Text
    "'abc'.contains('b') && 'abc'.startsWith('ab') && 'abc'.endsWith('bc') && 'aBc'.lowerAscii() == 'abc'",
    "'héllo'.indexOf('l') == 2 && 'héllo'.indexOf('l', 3) == 3 && 'héllo'.lastIndexOf('l') == 3 && 'a'.indexOf('b') == -1",
    "'héhé'.lastIndexOf('hé', 1) == 0 && 'aaa'.lastIndexOf('aa', 1) == 1 && ''.indexOf('') == 0 && 'a'.indexOf('a', 9) == -1",
    "'abc'.lastIndexOf('c', 3) == -1 && 'ééé'.lastIndexOf('é', 0) == 0 && 'ééa'.lastIndexOf('éa', 2) == 1",
    "'abc'.indexOf('', 9) == 9 && 'abc'.lastIndexOf('', 9) == 9 && 'é'.lastIndexOf('') == 1 && 'a'.lastIndexOf('abc') == -1",
    "'héllo'.substring(1, 3) == 'él' && 'abc'.charAt(1) == 'b' && ' a\\t'.trim() == 'a' && 'abc'.reverse() == 'cba'",
    "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a'.split(',', 0) == []",
    "'héy'.split('') == ['h', 'é', 'y'] && ''.split('') == [] && 'abc'.split('', 2) == ['a', 'bc']",
    "['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b' && [].join('x') == ''",
    "'aaa'.replace('a', 'bb', 2) == 'bbbba' && 'abc'.replace('x', 'y') == 'abc'",
    "'%s-%05'.size() == 6 && '%s is %d%%'.format(['x', 3]) == 'x is 3%' && strings.quote('a\"b') == '\"a\\\\\"b\"'",
    "'rtx-3050'.matches('^rtx-[0-9]+$') && matches('a', 'a') && 'a1b22'.find('[0-9]+') == '1'",
    "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1'] && 'a'.find('b') == ''",
    r"'a_1 é'.findAll('\\w') == ['a', '_', '1'] && 'x٣'.find('\\d') == '' && 'a-.b'.matches('^[\\w.-]{1,63}$')",
    r"'a b'.matches('^\\w\\s\\w$') && '\\d'.matches(r'^\\d$') && 'é'.matches('^\\W$') && 'a'.matches('^[^\\d]$')",
    r"'a b'.findAll('\\S') == ['a', 'b'] && '\u00a0'.matches('^\\S$') && '٣'.matches('^\\D$') && !'3'.matches('\\D')",
    "bool('1') && bool('t') && bool('T') && bool('TRUE') && bool('True') && !bool('0') && !bool('f') && !bool('FALSE') && !bool('False') && bool(true)",
    "int(9223372036854774784.0) == 9223372036854774784 && uint(18446744073709549568.0) == 18446744073709549568u && uint(0.5) == 0u",
    "double(3) == 3.0 && double(3u) == 3.0 && double('1e3') == 1000.0 && double(1.5) == 1.5 && uint(3u) == 3u && bytes(b'a') == b'a'",
    "string(doc.metadata.name) == 'extra-1' && string(false) == 'false' && string(b'h\\xc3\\xa9') == 'hé' && int(-0.9) == 0",
    // Lists
    "[2, 1, 3].min() == 1 && [1, 3, 2].max() == 3 && [2.5, 1].max() == 2.5 && ['b', 'a'].min() == 'a' && [1].sum() == 1",
    "[1, 2].slice(0, 0) == [] && [1, 2].slice(2, 2) == [] && [1, 2].slice(1, 2) == [2] && ['a', 'b'].sum() == 'ab'",
    "[[[1]]].flatten() == [[1]] && [[[1]]].flatten(0) == [[[1]]] && [[[[1]]]].flatten(3) == [1] && [1, [2], 3].flatten() == [1, 2, 3]",
    "[5, 3, 9, 1, 7, 3, 2].sort() == [1, 2, 3, 3, 5, 7, 9] && ['b', 'a', 'B'].sort() == ['B', 'a', 'b'] && [false, true, false].sort() == [false, false, true]",
    "[1, 1].isSorted() && [1, 2, 2, 3].isSorted() && ![2, 1, 3].isSorted() && ![1, 3, 2].isSorted()",
    "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && ![].first().hasValue() && 'añb'.reverse() == 'bña'",
    "sets.contains([1, 2], []) && !sets.contains([1], [1, 2]) && !sets.equivalent([1], [1, 2]) && !sets.equivalent([1, 2], [1]) && sets.equivalent([], [])",
    "sets.intersects([1, 2], [2, 3]) && !sets.intersects([], [1]) && sets.contains([1, 2, 3], [3, 1]) && lists.range(0) == []",
    "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sort() == ['a', 'b'] && [2, 1].isSorted() == false && [].isSorted()",
    "[1, 2].sum() == 3 && [1.5, 1.5].sum() == 3.0 && [].sum() == 0 && [3, 1].min() == 1 && [3, 1].max() == 3",
    "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2, [3]]].flatten() == [1, 2, [3]] && [[1, [2]]].flatten(2) == [1, 2]",
    "[1, 1.0, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && [1].first().value() == 1 && ![].last().hasValue()",
    "lists.range(3) == [0, 1, 2] && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
    "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])",
    // Kubernetes
    "quantity(doc.status.capacity.cpu).compareTo(quantity('16')) == 0 && quantity('1Gi').isGreaterThan(quantity('1G'))",
    "isQuantity('500m') && !isQuantity('x') && !isQuantity('1e99') && quantity('2').asInteger() == 2",
    "quantity('1').add(quantity('500m')).compareTo(quantity('1.5')) == 0 && quantity('1').sub(2).sign() == -1",
    "semver(doc.status.nodeInfo.kubeletVersion, true).minor() == 36 && isSemver('1.2.3') && !isSemver('v1')",
    "semver('1.10.0').isGreaterThan(semver('1.9.0')) && semver('1.0.0').compareTo(semver('1.0.0')) == 0",
    "cidr('10.0.0.0/8').containsIP(doc.status.addresses[0].address) && ip('10.1.2.3').family() == 4 && isIP('::1')",
    "cidr('10.1.2.3/8').masked().ip() == ip('10.0.0.0') && string(ip('10.0.0.1')) == '10.0.0.1' && ip.isCanonical('::1')",
    "url(doc.spec.providerID).getEscapedPath() == '/eu-west-1a/i-0123' && isURL('https://a/b')",
    "!format.dns1123Label().validate(doc.metadata.name).hasValue() && format.labelValue().validate('a b').hasValue()",
    "timestamp(doc.metadata.creationTimestamp) < timestamp('2026-02-01T00:00:00Z')",
    "timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('24h')",
    "duration('90m').getHours() == 1 && timestamp('2026-03-01T00:00:00Z').getMonth() == 2",
    "math.ceil(1.2) == 2.0 && math.greatest(1, 2, 3) == 3 && math.least([4, 2]) == 2 && math.bitAnd(6, 3) == 2",
    "base64.encode(b'hi') == 'aGk=' && base64.decode('aGk=') == b'hi'",
    "url('https://a/b?x=1&y=2').getQuery().map(k, k) == ['x', 'y']",
];

#[test]
fn functions_do_what_kubernetes_documents() {
    for source in TRUE {
        assert_eq!(ask(source), Ok(true), "{source}");
    }
}

/// Calls that the libraries answer with a panic, endless memory or a wrong number.
#[test]
fn what_the_libraries_get_wrong_is_an_error_here() {
    let cases = [
        ("lists.range(9223372036854775807).size() > 0", "steps"),
        ("lists.range(-1).size() > 0", "negative"),
        ("[9223372036854775807, 1].sum() > 0", "beyond the range"),
        ("'%.f'.format([1.0]) == ''", "needs a number of digits"),
        ("'%.99999999999f'.format([1.0]) == ''", "at most 100 digits"),
        ("'%.99999999999999999999999f'.format([1.0]) == ''", "at most 100 digits"),
        ("'%s'.format([optional.of(1)]) == ''", "cannot write an optional as `%s`"),
        ("'%d %d'.format([1]) == ''", "no value for its clause 2"),
        ("'%q'.format([1]) == ''", "does not support `%q`"),
        ("'%'.format([1]) == ''", "ends within a clause"),
        ("'abc'.lastIndexOf('c', -1) == -1", "cannot start at -1"),
        ("'abc'.indexOf('c', -1) == -1", "cannot start at -1"),
        ("quantity('1e50').isLessThan(quantity('1n'))", "out of range"),
        ("quantity('99999999999999999999E').isLessThan(quantity('1'))", "out of range"),
        ("[1, 2].join(',') == ''", "string(x)"),
        ("b'abc' == b'' || dyn(b'abc').contains('')", "cannot take bytes"),
        ("[1, 2].sortBy(n, n == 1 ? 'a' : dyn(1)) == []", "cannot be compared"),
        ("[1.0, 0.0 / 0.0, 'a', true].sort() == []", "cannot be compared"),
        ("math.bitShiftLeft(1, -1) == 0", "negative number of bits"),
        ("math.bitAnd(1, 1u) == 1", "cannot take (an int, a uint)"),
        ("timestamp('2026-02-29T00:00:00Z') > timestamp(0)", "not a point in time"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') > timestamp(0)", "beyond the years"),
        ("duration('2562047h48m') > duration('0s')", "at most 292 years"),
        ("timestamp(0).getHours('Europe/Berlin') == 1", "write UTC or an offset"),
        ("'abc'.substring(2, 1) == ''", "out of range"),
        ("'abc'.charAt(-1) == ''", "out of range"),
        ("[1].slice(0, 9) == []", "of a list of 1 items"),
    ];
    for (source, expected) in cases {
        let message = failure(source);
        assert!(message.contains(expected), "{source}: {message}");
    }
}
