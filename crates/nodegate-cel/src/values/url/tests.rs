#![allow(clippy::unwrap_used)]

use crate::values::url::*;

fn parsed(text: &str) -> Result<Url, String> {
    Url::parse_request(text).and_then(|_| Url::parse(text))
}

#[test]
fn the_parts_of_a_url_are_those_that_go_finds() {
    for (text, scheme, host, hostname, port, path) in [
        ("https://example.com:8080/a/b?x=1#f", "https", "example.com:8080", "example.com", "8080", "/a/b"),
        ("HTTP://LocalHost:80/", "http", "LocalHost:80", "LocalHost", "80", "/"),
        ("http://localhost/a/../b", "http", "localhost", "localhost", "", "/a/../b"),
        ("https://a@b:c@host/?q", "https", "host", "host", "", "/"),
        ("http://[::1]:6443", "http", "[::1]:6443", "::1", "6443", ""),
        ("http://[fe80::1%25en0]/", "http", "[fe80::1%en0]", "fe80::1%en0", "", "/"),
        ("http://h:/x", "http", "h:", "h", "", "/x"),
        ("postgres://a:1,b:2/db", "postgres", "a:1,b:2", "a:1,b", "2", "/db"),
        ("http://%C3%A9/", "http", "é", "é", "", "/"),
        ("aws:///us-east-1a/i-0abc", "aws", "", "", "", "/us-east-1a/i-0abc"),
        ("mailto:a@b", "mailto", "", "", "", ""),
        ("/only/path?q=1", "", "", "", "", "/only/path"),
        ("///a", "", "", "", "", "///a"),
        ("/p%20q%2f", "", "", "", "", "/p%20q%2f"),
        ("/p q%2fé", "", "", "", "", "/p%20q/%C3%A9"),
        ("/[*]", "", "", "", "", "/[*]"),
        ("*", "", "", "", "", "*"),
    ] {
        let url = parsed(text).unwrap();
        let parts = (&*url.scheme, &*url.host, url.host_and_port(), &*url.path);
        assert_eq!(parts, (scheme, host, (hostname, port), path), "{text}");
    }
}

#[test]
fn what_go_refuses_is_refused_with_its_reason() {
    for (text, fault) in [
        ("", "empty url"),
        ("a", "invalid URI for request"),
        ("1a://b", "invalid URI for request"),
        (":a", "missing protocol scheme"),
        ("http://a b/", "invalid character \" \" in host name"),
        ("http://a%20b/", "invalid URL escape \"%20\""),
        ("http://a/%2", "invalid URL escape \"%2\""),
        ("http://a/%zz", "invalid URL escape \"%zz\""),
        ("http://a:b/", "invalid port \":b\" after host"),
        ("http://a:1:2/", "invalid port \":1:2\" after host"),
        ("http://[::1", "missing ']' in host"),
        ("http://a[::1]", "invalid IP-literal"),
        ("http://[1.2.3.4]/", "invalid IP-literal"),
        ("http://[x]/", "invalid host"),
        ("http://[::1]x/", "invalid port \"x\" after host"),
        ("http://a b@c/", "net/url: invalid userinfo"),
        ("http://a\n", "net/url: invalid control character in URL"),
    ] {
        assert_eq!(parsed(text).unwrap_err(), format!("parse {text:?}: {fault}"));
    }
    assert!(Url::parse_request("/a#%zz").is_err() && Url::parse("/a#%zz").is_err());
    // Go takes this one, but a text must be UTF-8 here.
    assert_eq!(parsed("http://%FF/").unwrap_err(), "parse \"http://%FF/\": the host is not UTF-8");
}

#[test]
fn urls_are_equal_if_go_writes_them_the_same() {
    for (one, other, equal) in [
        ("HTTPS://a/b", "https://a/b", true),
        ("http://a!@h/", "http://a%21@h/", true),
        ("/a#x y", "/a#x%20y", true),
        ("/a b", "/a%20b", true),
        ("https://a/%7Eb", "https://a/~b", false),
        ("aws:/x", "aws:///x", false),
        ("https://a/b", "https://a/b?", false),
        ("https://a/b", "https://u@a/b", false),
        ("https://u@a/b", "https://u:@a/b", false),
        ("https://a/b", "https://a/b#f", false),
        ("https://a/b", "https://a/b/", false),
        ("https://a/b", "http://a/b", false),
        ("https://a/b", "https://A/b", false),
    ] {
        assert_eq!(parsed(one).unwrap() == parsed(other).unwrap(), equal, "{one} {other}");
    }
}
