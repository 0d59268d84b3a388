//! The functions.

use crate::functions::{self, Form};
use crate::tests::{SCHEMA, ask, failure};
use crate::{Expression, Yields};

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
        // Only what Kubernetes keeps as an int is one.
        "!quantity('1000m').isInteger() && !quantity('2.0').isInteger() && !quantity('1Pi').isInteger() && quantity('1Ti').isInteger()",
        "quantity('9e18').isInteger() && !quantity('10e18').isInteger() && quantity('999999999999999999').isInteger()",
        "!quantity('9999999999999999999').isInteger() && quantity('1k').add(quantity('1')).asInteger() == 1001",
        "!quantity('5E').add(quantity('5E')).isInteger() && quantity('5').sub(5).asInteger() == 0",
        "quantity('1500m').add(quantity('12E')).asApproximateFloat() == 1.2e19 && quantity('1500m').asApproximateFloat() == 1.5",
        // Rounded away from zero to the finest unit, and capped with a binary suffix.
        "quantity('0.1n') == quantity('1n') && quantity('-1.1n') == quantity('-2n') && quantity('0.1n').sign() == 1",
        "quantity('99Ei') == quantity('9223372036854775807') && quantity('-99Ei') == quantity('-9223372036854775807')",
        "quantity('99E').isGreaterThan(quantity('99Ei')) && quantity('1.5Ki') == quantity('1536') && quantity('1.5Ki').sign() == 1",
        "quantity('.') == quantity('0') && quantity('-') == quantity('+') && !isQuantity('Pi') && !isQuantity('') && !isQuantity('1 ')",
        "quantity('0').add(quantity('1m')) == quantity('1m') && quantity('1m').add(quantity('0')) == quantity('1m')",
        "quantity('1').sub(-9223372036854775808).asApproximateFloat() == 9223372036854775808.0",
        "!isSemver('1.0.0-99999999999999999999') && isSemver('1.0.0-18446744073709551615') && isSemver('1.0.0+99999999999999999999')",
        "semver('1.2.3-rc.1').isLessThan(semver('1.2.3-rc.10')) && semver('1.2.3').patch() == 3 && semver('4.5.6').major() == 4",
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
    "'abc'.charAt(3) == '' && 'aé'.charAt(1) == 'é' && 'abc'.substring(3) == '' && 'héllo'.substring(1) == 'éllo' && 'abc'.substring(1, 1) == ''",
    "'aÉB'.lowerAscii() == 'aÉb' && 'aéb'.upperAscii() == 'AéB' && '\\u00a0 a \\n'.trim() == 'a'",
    r#"strings.quote('\a\b\f\n\r\t\v\\"é') == '"\\a\\b\\f\\n\\r\\t\\v\\\\\\"é"'"#,
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
    "ip('10.0.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast() && !ip('224.1.2.3').isGlobalUnicast()",
    "!ip('127.0.0.1').isGlobalUnicast() && !ip('0.0.0.0').isGlobalUnicast() && !ip('169.254.1.1').isGlobalUnicast() && ip('2001:db8::1').isGlobalUnicast()",
    "ip('224.0.0.9').isLinkLocalMulticast() && !ip('224.0.1.9').isLinkLocalMulticast() && ip('ff12::1').isLinkLocalMulticast() && !ip('ff05::1').isLinkLocalMulticast()",
    "ip('fe80::1').isLinkLocalUnicast() && !ip('fec0::1').isLinkLocalUnicast() && ip('169.254.0.1').isLinkLocalUnicast() && !ip('169.255.0.1').isLinkLocalUnicast()",
    "ip('::1').isLoopback() && ip('127.9.9.9').isLoopback() && ip('::').isUnspecified() && !ip('::1').isUnspecified() && ip('::1').family() == 6",
    "!isIP('10.0.0.01') && !isIP('::ffff:10.0.0.1') && !isIP('fe80::1%eth0') && isIP('::1.2.3.4') && !ip.isCanonical('2001:DB8::1')",
    "string(cidr('10.1.2.3/8')) == '10.1.2.3/8' && cidr('10.1.2.3/8') != cidr('10.0.0.0/8') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
    "cidr('0.0.0.0/0').containsIP(ip('1.2.3.4')) && !cidr('0.0.0.0/0').containsIP('::1') && cidr('::/0').containsIP('::1') && cidr('::1/128').prefixLength() == 128",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8')) && !cidr('10.0.0.0/8').containsCIDR('11.0.0.0/8')",
    "cidr('10.0.0.0/8').containsCIDR('10.9.9.9/8') && cidr('10.0.0.1/32').containsIP('10.0.0.1') && !cidr('10.0.0.1/32').containsIP('10.0.0.2')",
    "isCIDR('10.0.0.0/32') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0/08') && !isCIDR('10.0.0.0') && !isCIDR('::/129') && isCIDR('::/0') && !isCIDR('::/+8')",
    "timestamp(doc.metadata.creationTimestamp) < timestamp('2026-02-01T00:00:00Z')",
    "timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('24h')",
    "duration('90m').getHours() == 1 && timestamp('2026-03-01T00:00:00Z').getMonth() == 2",
    "math.ceil(1.2) == 2.0 && math.greatest(1, 2, 3) == 3 && math.least([4, 2]) == 2 && math.bitAnd(6, 3) == 2",
    "math.floor(-1.5) == -2.0 && math.ceil(-1.5) == -1.0 && math.round(-1.5) == -2.0 && math.round(2.5) == 3.0 && math.trunc(-1.9) == -1.0",
    "math.abs(-1.5) == 1.5 && math.abs(-3) == 3 && math.abs(3u) == 3u && math.sqrt(9.0) == 3.0 && math.isNaN(math.sqrt(-1.0))",
    "math.sign(-5) == -1 && math.sign(0) == 0 && math.sign(7u) == 1u && math.sign(0u) == 0u && math.sign(-0.5) == -1.0 && math.sign(-0.0) == 0.0 && math.isNaN(math.sign(0.0 / 0.0))",
    "math.isInf(1.0 / 0.0) && !math.isInf(1.0) && math.isNaN(0.0 / 0.0) && !math.isNaN(1.0) && math.isFinite(1.0) && !math.isFinite(1.0 / 0.0)",
    "math.greatest(1, 2.5, 2u) == 2.5 && math.least(3, 1u, 2.0) == 1u && math.greatest([1, 5, 3]) == 5 && math.least(4) == 4 && string(math.greatest(1, 1.0)) == '1'",
    "math.greatest(9223372036854775807, 9223372036854775806) == 9223372036854775807 && math.least([2, 1.5]) == 1.5",
    "base64.decode('aGk') == b'hi' && base64.encode(b'') == '' && base64.decode('') == b''",
    "base64.encode(b'hi') == 'aGk=' && base64.decode('aGk=') == b'hi'",
    "url('https://a/b?x=1&y=2').getQuery().map(k, k) == ['x', 'y']",
];

#[test]
fn functions_do_what_kubernetes_documents() {
    for source in TRUE {
        assert_eq!(ask(source), Ok(true), "{source}");
    }
}

/// Among them calls that other engines answer with a panic, endless memory or a wrong number.
#[test]
fn what_has_no_answer_is_an_error() {
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
        ("'abc'.charAt(4) == ''", "out of range for a string of 3 characters"),
        ("'abc'.substring(4) == ''", "out of range"),
        ("'abc'.substring(1, 4) == ''", "out of range"),
        ("math.abs(-9223372036854775808) == 1", "beyond the range"),
        ("math.greatest([]) == 1", "needs a number"),
        ("math.greatest(['a']) == 'a'", "cannot take (a string)"),
        ("math.least(1.0, 0.0 / 0.0) == 1.0", "not a number"),
        ("base64.decode('!') == b''", "base64.decode()"),
        ("ip('10.0.0.256').family() == 4", "is not an IP address"),
        ("cidr('10.0.0.0').prefixLength() == 8", "is not a network"),
        ("cidr('10.0.0.0/8').containsIP('x')", "is not an IP address"),
        ("cidr('10.0.0.0/8').containsCIDR(ip('10.0.0.1'))", "cannot take (an IP address)"),
        ("quantity('1').isLessThan(semver('1.0.0'))", "cannot take"),
        ("quantity('1').add('1') == quantity('2')", "cannot take"),
        ("quantity('1500m').asInteger() == 1", "no int"),
        ("semver('1.2') == semver('1.2.0')", "semver()"),
        ("string(quantity('1')) == '1'", "cannot take (a quantity)"),
        ("[1].slice(0, 9) == []", "of a list of 1 items"),
    ];
    for (source, expected) in cases {
        let message = failure(source);
        assert!(message.contains(expected), "{source}: {message}");
    }
}
