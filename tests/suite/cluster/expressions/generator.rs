//! Expressions of every kind that Kubernetes knows, made at random from a seed.

/// Random numbers that are the same for the same seed (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(count).unwrap()).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Duration,
    Time,
    Texts,
    Ints,
    Maybe,
    Map,
    Quantity,
    Version,
    Ip,
    Cidr,
    Url,
}

use Kind::{Bool, Cidr, Double, Duration, Int, Ints, Ip, Map, Maybe, Quantity, Text, Texts, Time, Uint, Url, Version};

const KINDS: [Kind; 16] =
    [Bool, Int, Uint, Double, Text, Duration, Time, Texts, Ints, Maybe, Map, Quantity, Version, Ip, Cidr, Url];

/// Values that are written down. Each is one that some implementation gets wrong.
fn leaves(kind: Kind) -> &'static [&'static str] {
    match kind {
        Bool => &["true", "false"],
        Int => &["0", "1", "-1", "3", "7", "64", "-9223372036854775808", "9223372036854775807", "int('12')"],
        Uint => &["0u", "1u", "5u", "18446744073709551615u", "uint(9)"],
        Double => &[
            "0.0",
            "-0.0",
            "1.5",
            "-2.25",
            "1e6",
            "123456.0",
            "1234567.0",
            "1e21",
            "1e-5",
            "0.0001",
            "1e300",
            "3.0",
            "double('NaN')",
            "1.0 / 0.0",
            "double(7)",
            "0.1",
        ],
        Text => &[
            "''",
            "'a'",
            "'abc'",
            "'ABC'",
            "'a,b,,c'",
            "'héllo'",
            "'ééé'",
            "'aXbX'",
            "'  pad '",
            "'1'",
            "'-12'",
            "'1.5'",
            "'true'",
            "'日本語'",
            "'a-b_c'",
            "'node-17'",
            "'1h'",
            "'%'",
        ],
        Duration => &[
            "duration('0s')",
            "duration('1h30m')",
            "duration('-1.5s')",
            "duration('300ms')",
            "duration('1us')",
            "duration('2562047h')",
            "duration('1.000000001s')",
        ],
        Time => &[
            "timestamp('1970-01-01T00:00:00Z')",
            "timestamp('2026-11-21T20:15:30.123456789Z')",
            "timestamp(1000000000)",
            "timestamp('2024-02-29T23:59:59+05:30')",
            "timestamp('0001-01-01T00:00:00Z')",
            "timestamp('9999-12-31T23:59:59Z')",
            "timestamp('2026-03-01T00:00:00.5-08:00')",
        ],
        Texts => &["['a', 'b', 'c']", "['b', 'a', 'b']", "['é']", "'a,b,c'.split(',')", "['x', ''].filter(s, s != '')"],
        Ints => &["[1, 2, 3]", "[3, 1, 2, 3]", "[-1]", "[1, 2].map(i, i * 2)", "lists.range(4)"],
        Maybe => {
            &["optional.none()", "optional.of('v')", "optional.ofNonZeroValue('')", "{'k': 'v'}[?'k']", "{'k': 'v'}.?x"]
        }
        Map => &["{'a': '1', 'b': '2'}", "{'k': 'v'}", "{'é': '', 'x': 'y'}"],
        Quantity => &[
            "quantity('1')",
            "quantity('1500m')",
            "quantity('1Gi')",
            "quantity('-5k')",
            "quantity('0.5')",
            "quantity('1e3')",
            "quantity('100')",
            "quantity('3Mi')",
            "quantity('12E')",
        ],
        Version => &[
            "semver('1.2.3')",
            "semver('1.2.3-rc.1')",
            "semver('2.0.0+build.5')",
            "semver('v1.30', true)",
            "semver('01.2', true)",
            "semver('1.2.3-rc.10')",
        ],
        Ip => &[
            "ip('10.0.0.1')",
            "ip('127.0.0.1')",
            "ip('::1')",
            "ip('2001:db8::68')",
            "ip('fe80::1')",
            "ip('224.0.0.1')",
            "ip('0.0.0.0')",
            "ip('ff02::1')",
            "ip('169.254.1.1')",
        ],
        Cidr => &[
            "cidr('10.0.0.0/8')",
            "cidr('192.168.1.5/24')",
            "cidr('2001:db8::/32')",
            "cidr('0.0.0.0/0')",
            "cidr('127.0.0.1/32')",
        ],
        Url => &[
            "url('https://example.com:8080/a/b?x=1&y=2&x=3')",
            "url('http://[::1]/p%20q')",
            "url('/only/path')",
            "url('https://user@host.example/?q=%C3%A9')",
        ],
    }
}

/// Expressions of a kind: each letter in angle brackets stands for an expression of the kind it begins.
fn forms(kind: Kind) -> &'static [&'static str] {
    match kind {
        Bool => &[
            "!<B>",
            "(<B> && <B>)",
            "(<B> || <B>)",
            "(<B> ? <B> : <B>)",
            "(<I> < <I>)",
            "(<I> == <I>)",
            "(<I> >= <D>)",
            "(<U> < <I>)",
            "(<D> == <D>)",
            "(<D> < <D>)",
            "(<S> == <S>)",
            "(<S> < <S>)",
            "(<S> in <L>)",
            "(<I> in <N>)",
            "(<S> in <M>)",
            "<S>.contains(<S>)",
            "<S>.startsWith(<S>)",
            "<S>.endsWith(<S>)",
            "<S>.matches('^[a-z]+$')",
            "<S>.matches('[0-9]|é')",
            "(<W> > <W>)",
            "(<W> == <W>)",
            "(<T> < <T>)",
            "(<T> == <T>)",
            "(<L> == <L>)",
            "(<N> != <N>)",
            "<L>.exists(e, e == <S>)",
            "<N>.all(e, e > <I>)",
            "<N>.exists_one(e, e == <I>)",
            "<L>.isSorted()",
            "<O>.hasValue()",
            "<Q>.isGreaterThan(<Q>)",
            "<Q>.isLessThan(<Q>)",
            "(<Q> == <Q>)",
            "<Q>.isInteger()",
            "isQuantity(<S>)",
            "<V>.isLessThan(<V>)",
            "<V>.isGreaterThan(<V>)",
            "(<V> == <V>)",
            "isSemver(<S>)",
            "isIP(<S>)",
            "isCIDR(<S>)",
            "isURL(<S>)",
            "<A>.isLoopback()",
            "<A>.isGlobalUnicast()",
            "<A>.isUnspecified()",
            "<A>.isLinkLocalMulticast()",
            "<A>.isLinkLocalUnicast()",
            "<C>.containsIP(<A>)",
            "<C>.containsCIDR(<C>)",
            "(<A> == <A>)",
            "(<C> == <C>)",
            "sets.contains(<L>, <L>)",
            "sets.intersects(<N>, <N>)",
            "sets.equivalent(<L>, <L>)",
            "<M>.all(k, v, k != v)",
            "bool('true')",
            "(<I> / <I> == 0 || <B>)",
            "format.dns1123Label().validate(<S>).hasValue()",
            "format.named('dns1123Subdomain').hasValue()",
            "format.qualifiedName().validate(<S>).hasValue()",
            "format.labelValue().validate(<S>).hasValue()",
            "format.dns1035Label().validate(<S>).hasValue()",
            "format.uuid().validate(<S>).hasValue()",
            "format.byte().validate(<S>).hasValue()",
            "format.date().validate(<S>).hasValue()",
            "format.datetime().validate(<S>).hasValue()",
            "format.uri().validate(<S>).hasValue()",
            "ip.isCanonical('::1')",
            "has({'a': <S>}.a)",
        ],
        Int => &[
            "(<I> + <I>)",
            "(<I> - <I>)",
            "(<I> * <I>)",
            "(<I> / <I>)",
            "(<I> % <I>)",
            "(-<I>)",
            "size(<S>)",
            "<L>.size()",
            "size(<M>)",
            "int(<D>)",
            "int(<U>)",
            "int(<S>)",
            "int(<T>)",
            "int(<W>)",
            "<S>.indexOf(<S>)",
            "<S>.lastIndexOf(<S>)",
            "<S>.indexOf(<S>, <I>)",
            "<S>.lastIndexOf(<S>, <I>)",
            "<N>[<I>]",
            "<N>.sum()",
            "<N>.min()",
            "<N>.max()",
            "<N>.indexOf(<I>)",
            "<N>.lastIndexOf(<I>)",
            "<T>.getFullYear()",
            "<T>.getMonth()",
            "<T>.getDate()",
            "<T>.getDayOfMonth()",
            "<T>.getDayOfWeek()",
            "<T>.getDayOfYear()",
            "<T>.getHours()",
            "<T>.getHours('+02:30')",
            "<T>.getMinutes('-09:30')",
            "<T>.getSeconds()",
            "<T>.getMilliseconds()",
            "<W>.getHours()",
            "<W>.getMinutes()",
            "<W>.getSeconds()",
            "<W>.getMilliseconds()",
            "<Q>.sign()",
            "<Q>.asInteger()",
            "<Q>.compareTo(<Q>)",
            "<V>.major()",
            "<V>.minor()",
            "<V>.patch()",
            "<V>.compareTo(<V>)",
            "<A>.family()",
            "<C>.prefixLength()",
            "(<B> ? <I> : <I>)",
            "(<N> + <N>).size()",
        ],
        Uint => &[
            "(<U> + <U>)",
            "(<U> - <U>)",
            "(<U> * <U>)",
            "(<U> / <U>)",
            "(<U> % <U>)",
            "uint(<I>)",
            "uint(<D>)",
            "uint(<S>)",
        ],
        Double => &[
            "(<D> + <D>)",
            "(<D> - <D>)",
            "(<D> * <D>)",
            "(<D> / <D>)",
            "double(<I>)",
            "double(<S>)",
            "(-<D>)",
            "<Q>.asApproximateFloat()",
        ],
        Text => &[
            "(<S> + <S>)",
            "string(<I>)",
            "string(<D>)",
            "string(<U>)",
            "string(<B>)",
            "string(<W>)",
            "string(<T>)",
            "<S>.lowerAscii()",
            "<S>.upperAscii()",
            "<S>.trim()",
            "<S>.charAt(<I>)",
            "<S>.substring(<I>)",
            "<S>.substring(<I>, <I>)",
            "<S>.replace(<S>, <S>)",
            "<S>.replace(<S>, <S>, <I>)",
            "<L>.join()",
            "<L>.join(<S>)",
            "<S>.find('[a-z]+')",
            "<L>[<I>]",
            "<O>.orValue(<S>)",
            "<O>.value()",
            "<M>.a",
            "<M>[<S>]",
            "string(<A>)",
            "string(<C>)",
            "string(<C>.ip())",
            "string(<C>.masked())",
            "<H>.getHost()",
            "<H>.getHostname()",
            "<H>.getPort()",
            "<H>.getScheme()",
            "<H>.getEscapedPath()",
            "(<B> ? <S> : <S>)",
            "'%s|%d'.format([<S>, <I>])",
            "'%b %x %o %X'.format([<I>, <I>, <U>, <S>])",
            "'%s %s'.format([<W>, <T>])",
            "'%s'.format([<D>])",
            "strings.quote(<S>)",
            "<L>.min()",
            "<L>.max()",
            "string(bytes(<S>))",
        ],
        Duration => &["(<W> + <W>)", "(<W> - <W>)", "(<T> - <T>)", "duration(<S>)", "(<B> ? <W> : <W>)"],
        Time => &["(<T> + <W>)", "(<T> - <W>)", "(<W> + <T>)", "timestamp(<I>)", "timestamp(<S>)"],
        Texts => &[
            "(<L> + <L>)",
            "<S>.split(',')",
            "<S>.split('')",
            "<S>.split(<S>, <I>)",
            "<L>.map(e, e + <S>)",
            "<L>.filter(e, e != <S>)",
            "<S>.findAll('[a-z]')",
            "<S>.findAll('[a-zé]', <I>)",
            "<L>.slice(<I>, <I>)",
            "<L>.sort()",
            "<L>.distinct()",
            "<L>.reverse()",
            "<L>.sortBy(e, size(e))",
            "[<L>, <L>].flatten()",
            "<M>.map(k, k).sort()",
            "<M>.transformList(k, v, k + v).sort()",
            "[<S>, <S>]",
            "[?<O>]",
        ],
        Ints => &[
            "(<N> + <N>)",
            "<N>.map(e, e + <I>)",
            "<N>.filter(e, e > <I>)",
            "<N>.sort()",
            "<N>.distinct()",
            "<N>.reverse()",
            "<N>.slice(<I>, <I>)",
            "<L>.map(e, size(e))",
            "<N>.transformList(i, v, i * v)",
            "[<I>, <I>]",
            "<N>.sortBy(e, -e)",
        ],
        Maybe => &[
            "optional.of(<S>)",
            "<M>[?<S>]",
            "<L>[?<I>]",
            "<O>.or(<O>)",
            "<O>.optMap(v, v + <S>)",
            "<O>.optFlatMap(v, optional.of(v))",
            "<L>.first()",
            "<L>.last()",
        ],
        Map => &[
            "<M>.transformMap(k, v, v + <S>)",
            "<M>.transformMap(k, v, k != <S>, v)",
            "{<S>: <S>}",
            "(<B> ? <M> : <M>)",
        ],
        Quantity => &["<Q>.add(<Q>)", "<Q>.sub(<Q>)", "<Q>.add(<I>)", "<Q>.sub(<I>)", "quantity(<S>)"],
        Version => &["semver(<S>)", "semver(<S>, true)", "(<B> ? <V> : <V>)"],
        Ip => &["ip(<S>)", "<C>.ip()", "(<B> ? <A> : <A>)"],
        Cidr => &["<C>.masked()", "cidr(<S>)"],
        Url => &["url(<S>)", "(<B> ? <H> : <H>)"],
    }
}

fn named(letter: char) -> Kind {
    match letter {
        'B' => Bool,
        'I' => Int,
        'U' => Uint,
        'D' => Double,
        'S' => Text,
        'W' => Duration,
        'T' => Time,
        'L' => Texts,
        'N' => Ints,
        'O' => Maybe,
        'M' => Map,
        'Q' => Quantity,
        'V' => Version,
        'A' => Ip,
        'C' => Cidr,
        'H' => Url,
        other => panic!("{other} names no kind"),
    }
}

fn made(random: &mut Random, kind: Kind, depth: usize) -> String {
    if depth == 0 || random.below(5) == 0 {
        return random.pick(leaves(kind)).to_owned();
    }
    let mut rest = random.pick(forms(kind));
    let mut expression = String::new();
    while let Some(at) = rest.as_bytes().windows(3).position(|hole| hole[0] == b'<' && hole[2] == b'>') {
        expression.push_str(&rest[..at]);
        expression.push_str(&made(random, named(char::from(rest.as_bytes()[at + 1])), depth - 1));
        rest = &rest[at + 3..];
    }
    expression + rest
}

/// An expression of any kind, as text that tells all of its value.
pub(super) fn expression(random: &mut Random) -> String {
    let kind = random.pick(&KINDS);
    let depth = 1 + random.below(2);
    let value = made(random, kind, depth);
    let text = match kind {
        Text => value,
        Bool | Int | Uint | Double | Duration | Time | Ip | Cidr => format!("string({value})"),
        Texts => format!("({value}).join('|')"),
        Ints => format!("({value}).map(e, string(e)).join('|')"),
        Maybe => format!("({value}).optMap(v, 'some ' + v).orValue('none')"),
        Map => format!("({value}).transformList(k, v, k + '=' + v).sort().join('|')"),
        Quantity => format!("string(({value}).asApproximateFloat())"),
        Version => {
            format!("[({value})].map(v, string(v.major()) + '.' + string(v.minor()) + '.' + string(v.patch()))[0]")
        }
        Url => format!("({value}).getHost() + ' ' + ({value}).getEscapedPath()"),
    };
    format!("'<' + {text} + '>'")
}
