use super::*;
use crate::firstboot::ExtraLabels;

fn program(line: &str) -> Result<NodeProgram, Fault> {
    NodeProgram::find(line.split(' ').map(OsString::from).collect())
}

fn labelled(line: &str, labels: &str, configured: Option<&str>) -> Result<String, Fault> {
    let words = program(line)?.with_labels(&ExtraLabels::parse(labels).labels, configured)?;
    Ok(words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
}

#[test]
fn labels_go_into_the_flag_of_a_kubelet() {
    for (line, expected) in [
        ("/usr/bin/kubelet", "/usr/bin/kubelet --node-labels=x=1,y="),
        ("kubelet --v=2 --a b", "kubelet --node-labels=x=1,y= --v=2 --a b"),
        ("kubelet --node-labels=a=b --v=2", "kubelet --node-labels=a=b,x=1,y= --v=2"),
        ("kubelet --node-labels a=b --v=2", "kubelet --node-labels a=b,x=1,y= --v=2"),
        ("kubelet --node_labels=a=b", "kubelet --node_labels=a=b,x=1,y="),
        ("kubelet --node-labels=", "kubelet --node-labels=x=1,y="),
        ("kubelet --node-labels=x=0,a=b,y", "kubelet --node-labels=a=b,x=1,y="),
        ("kubelet --node-labels=x=0 --v=1 --node-labels c=d,y=9", "kubelet --v=1 --node-labels c=d,x=1,y="),
        ("kubelet --node-labels x=0,q=r --node-labels=c=d", "kubelet --node-labels q=r --node-labels=c=d,x=1,y="),
        ("kubelet --node-labels=xx=0,x.y=2", "kubelet --node-labels=xx=0,x.y=2,x=1,y="),
        ("kubelet --a -- --node-labels=z=1", "kubelet --node-labels=x=1,y= --a -- --node-labels=z=1"),
        (
            "/usr/local/bin/kubenswrapper /usr/bin/kubelet --v=2",
            "/usr/local/bin/kubenswrapper /usr/bin/kubelet --node-labels=x=1,y= --v=2",
        ),
        ("nice -n 5 hyperkube kubelet --v=2", "nice -n 5 hyperkube kubelet --node-labels=x=1,y= --v=2"),
        (
            "systemd-cat -t kubelet /usr/bin/kubelet --v=2",
            "systemd-cat -t kubelet /usr/bin/kubelet --node-labels=x=1,y= --v=2",
        ),
        ("flock /var/lock/kubelet /usr/bin/kubelet", "flock /var/lock/kubelet /usr/bin/kubelet --node-labels=x=1,y="),
        ("kubelet --node-labels= --v=2", "kubelet --node-labels=x=1,y= --v=2"),
        ("kubelet --node-labels-file=f", "kubelet --node-labels=x=1,y= --node-labels-file=f"),
        ("kubelet --node-labels --v=2", "kubelet --node-labels --v=2,x=1,y="),
    ] {
        assert_eq!(labelled(line, "x=1,y", None).unwrap(), expected, "{line}");
    }
}

#[test]
fn labels_go_into_the_flags_of_k3s_and_rke2() {
    for (line, expected) in [
        ("/usr/local/bin/k3s agent", "/usr/local/bin/k3s agent --node-label=x=1 --node-label=y="),
        ("k3s --debug server --tls-san a", "k3s --debug server --node-label=x=1 --node-label=y= --tls-san a"),
        ("rke2 server --node-label a=b", "rke2 server --node-label=x=1 --node-label=y= --node-label a=b"),
        ("k3s agent --node-label x=0 --v", "k3s agent --node-label=x=1 --node-label=y= --v"),
        ("k3s agent -node-label=x=0,a=b", "k3s agent --node-label=x=1 --node-label=y= -node-label=a=b"),
        ("k3s agent --kubelet-arg=node-labels=a=b", "k3s agent --kubelet-arg=node-labels=a=b,x=1,y="),
        ("k3s agent --kubelet-arg --node-labels=x=0", "k3s agent --kubelet-arg --node-labels=x=1,y="),
        (
            "rke2 agent --kubelet-arg=v=2 --kubelet-arg node-labels+=x=0,a=b",
            "rke2 agent --kubelet-arg=v=2 --kubelet-arg node-labels+=a=b,x=1,y=",
        ),
        (
            "rke2 agent --kubelet-arg=node-labels=x=0 --kubelet-arg=node-labels=c=d",
            "rke2 agent --kubelet-arg=node-labels=c=d,x=1,y=",
        ),
        ("k3s --data-dir server agent", "k3s --data-dir server agent --node-label=x=1 --node-label=y="),
        ("k3s agent --kubelet-arg=max-pods=5", "k3s agent --node-label=x=1 --node-label=y= --kubelet-arg=max-pods=5"),
    ] {
        assert_eq!(labelled(line, "x=1,y", None).unwrap(), expected, "{line}");
    }
}

#[test]
fn a_list_in_the_configuration_file_is_not_replaced_by_a_flag() {
    let fault = labelled("k3s agent", "x=1", Some("node-label")).unwrap_err();
    assert!(matches!(&fault, Fault::InConfiguration(named) if named == "node-label"));
    assert!(labelled("k3s agent --node-label a=b", "x=1", Some("node-label")).is_ok());
    assert!(labelled("k3s agent --node-label a=b", "x=1", Some("kubelet-arg")).is_err());
    assert!(labelled("k3s agent --kubelet-arg=node-labels=a=b", "x=1", Some("kubelet-arg")).is_ok());
}

#[test]
fn what_is_no_kubelet_and_a_flag_without_value_are_faults() {
    for line in [
        "/bin/sh -c sleep",
        "k3s",
        "k3s kubectl",
        "tool --dir /var/lib/kubelet",
        "/usr/bin/kubelet-wrapper",
        "",
        // What stands beside the flags of wrappers.
        "docker start -a kubelet",
        "docker start kubelet",
        "flock /var/lock/kubelet script",
        "env -C /var/lib/kubelet script",
        "k3s --data-dir server",
    ] {
        assert_eq!(program(line), Err(Fault::NoKubelet), "{line}");
    }
    assert_eq!(labelled("kubelet --node-labels", "x=1", None), Err(Fault::NoValue("--node-labels".to_owned())));
    assert_eq!(labelled("k3s agent --node-label", "x=1", None), Err(Fault::NoValue("--node-label".to_owned())));
    assert_eq!(program(""), Err(Fault::NoKubelet));
    assert_eq!(program("/usr/local/bin/k0s worker --token-file=/etc/k0s/token"), Err(Fault::K0s));
    assert_eq!(program("tool k0s"), Err(Fault::NoKubelet));
}

#[test]
fn words_that_are_not_utf8_are_kept() {
    let words = vec![
        "kubelet".into(),
        OsString::from_vec(b"--a=\xff".to_vec()),
        OsString::from_vec(b"--node-labels=\xfe=1".to_vec()),
    ];
    let labels = ExtraLabels::parse("x=1").labels;
    let changed = NodeProgram::find(words.clone()).unwrap().with_labels(&labels, None).unwrap();
    assert_eq!(changed[1], words[1]);
    assert_eq!(changed[2].as_bytes(), b"--node-labels=\xfe=1,x=1");
}

#[test]
fn the_certificate_is_where_the_flags_say() {
    for (line, data_dir, directory, name) in [
        ("kubelet", None, "/var/lib/kubelet/pki", "kubelet-client-current.pem"),
        ("kubelet --cert-dir=/a --cert-dir /b", None, "/b", "kubelet-client-2026-01-01-00-00-00.pem"),
        ("k3s agent", None, "/var/lib/rancher/k3s/agent", "client-kubelet.crt"),
        ("k3s server -d /data", Some("/ignored"), "/data/agent", "client-kubelet.crt"),
        ("rke2 agent", Some("/file"), "/file/agent", "client-kubelet.crt"),
        ("rke2 agent", None, "/var/lib/rancher/rke2/agent", "client-kubelet.crt"),
    ] {
        let credentials = program(line).unwrap().credentials(data_dir);
        assert_eq!(credentials.directory, Path::new(directory), "{line}");
        assert!(credentials.is_certificate(OsStr::new(name)), "{line}");
    }
    let kubelet = program("kubelet").unwrap().credentials(None);
    for other in ["kubelet-client.key.tmp", "kubelet.crt", "kubelet-server-current.pem"] {
        assert!(!kubelet.is_certificate(OsStr::new(other)), "{other}");
    }
    assert_eq!(program("k3s agent -c /etc/x.yaml").unwrap().configuration_flag(), Some("/etc/x.yaml".into()));
}
