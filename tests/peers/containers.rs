//! The OCI image, the manifests for Kubernetes and the compose file, by the tools of their makers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::setup_root;
use crate::tools::{path_of, run};
use crate::{CHECKOUT, PROGRAM};

#[test]
fn manifests_are_valid_for_kubernetes_and_the_prometheus_operator() {
    check_manifests("kubernetes", "kubernetes_manifests.py", &[tool("usr/bin/kustomize")]);
}

#[test]
fn manifests_are_valid_for_kserve() {
    check_manifests("kserve", "kserve_manifests.py", &[]);
}

#[test]
fn the_compose_file_is_valid() {
    let file = Path::new(CHECKOUT).join("packaging/image/compose/compose.yaml");
    let compose = tool("usr/libexec/docker/cli-plugins/docker-compose");
    run(Command::new(compose).arg("-f").arg(file).args(["--profile", "*", "config", "--quiet"]));
}

#[test]
fn the_configurations_of_manifests_and_compose_are_valid() {
    for file in ["packaging/kubernetes/base/ledge.toml", "packaging/image/compose/ledge.toml"] {
        run(Command::new(PROGRAM).args(["config", "check", "--config"]).arg(Path::new(CHECKOUT).join(file)));
    }
}

#[test]
fn an_image_that_is_built_twice_has_one_digest() {
    path_of("mmdebstrap");
    path_of("buildah");
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let package_builder = Path::new(CHECKOUT).join("packaging/build");
    run(Command::new(&python).arg(package_builder).args(["stage", "--any-glibc", "--binary", PROGRAM]));

    let image_builder = Path::new(CHECKOUT).join("packaging/image");
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Command::new(&python);
        builder.arg(&image_builder).arg(Path::new(CHECKOUT).join("target/packages/stage"));
        let output =
            run(builder.args(["--form", "slim", "--output"]).arg(folder.path()).env("SOURCE_DATE_EPOCH", "1700000000"));
        let digest = output.lines().last().and_then(|line| line.rsplit(' ').next()).unwrap().to_owned();
        assert!(digest.starts_with("sha256:"), "{output}");
        digest
    };
    assert_eq!(build(), build());
}

#[track_caller]
fn check_manifests(environment: &str, script: &str, arguments: &[PathBuf]) {
    let python = setup_root().join("peers").join(environment).join("bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-{environment}` gets it", python.display());
    let script = Path::new(CHECKOUT).join("tests/peers/clients").join(script);
    let output = run(Command::new(python).arg("-B").arg(script).arg(CHECKOUT).args(arguments));
    assert_eq!(output.trim(), "ok");
}

/// A program that `make setup-kubernetes` gets.
#[track_caller]
fn tool(path: &str) -> PathBuf {
    let program = setup_root().join("peers/kubernetes-tools").join(path);
    assert!(program.exists(), "{} is missing: `make setup-kubernetes` gets it", program.display());
    program
}
