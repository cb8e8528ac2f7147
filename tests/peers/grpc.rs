//! Clients of gRPC that others wrote, unmodified.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::access_mqtt::key;
use crate::daemon::{TestDaemon, TestRoot, setup_root};
use crate::tools::run;

fn python(name: &str) -> PathBuf {
    let python = setup_root().join("peers").join(name).join("bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-{name}` gets it", python.display());
    python
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients").join(name)
}

fn grpc_address(daemon: &TestDaemon) -> SocketAddr {
    let listening = daemon.events("listener.listening");
    let line = listening.iter().find(|line| line["scheme"].as_str().is_some_and(|scheme| scheme.starts_with("grpc")));
    line.unwrap()["address"].as_str().unwrap().parse().unwrap()
}

#[test]
fn tritons_client_works_with_a_key_over_tcp_and_over_tls() {
    for tls in [false, true] {
        let scheme = if tls { "https://" } else { "" };
        let root = TestRoot::new()
            .models(&["add_sub", "identity_string", "wine_mlp"])
            .set("access.loopback=[]")
            .set(&format!("grpc.listen={scheme}127.0.0.1:0"))
            .set(&format!("http.tls.self_signed={tls}"));
        let key = key(&root, &["client", "--role", "operator", "--role", "infer"]);
        let daemon = root.start();
        let mut client = Command::new(python("grpc"));
        client.arg(script("triton_grpc_calls.py")).args([&grpc_address(&daemon).to_string(), &key]);
        if tls {
            client.arg(daemon.root.folder.path().join("tls/self-signed.pem"));
        }
        assert_eq!(run(&mut client).trim(), "ok");
    }
}

#[test]
fn kserves_client_works() {
    let daemon = TestRoot::new().models(&["add_sub"]).set("grpc.listen=127.0.0.1:0").start();
    let mut client = Command::new(python("kserve"));
    client.arg(script("kserve_grpc_calls.py")).arg(grpc_address(&daemon).to_string());
    assert_eq!(run(&mut client).trim(), "ok");
}
