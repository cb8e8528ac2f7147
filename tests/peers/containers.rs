//! The OCI image, the manifests for Kubernetes and the compose file, by the tools of their makers, and the image under Podman.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::setup_root;
use crate::tools::{interpreter, path_of, run};
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
    fill_stage();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let output = build_image(folder.path(), &["--form", "slim"]);
        let digest = output.lines().last().and_then(|line| line.rsplit(' ').next()).unwrap().to_owned();
        assert!(digest.starts_with("sha256:"), "{output}");
        digest
    };
    assert_eq!(build(), build());
}

/// The folder `containers` has the tests, in Python. A second image stands for the next release.
#[test]
fn the_image_works_under_rootless_podman_and_attacks_from_inside_are_denied() {
    fill_stage();
    let folder = tempfile::tempdir().unwrap();
    let images = [env!("CARGO_PKG_VERSION"), "99.0.0"].map(|version| {
        build_image(folder.path(), &["--form", "full", "--version", version]);
        folder.path().join(format!("ledge-{version}.oci.tar"))
    });
    let tests = Path::new(CHECKOUT).join("tests/peers/containers");
    run(interpreter().arg("-B").arg(tests).args(images).env("LEDGE_TEST_ROOT", setup_root()));
}

/// Fills target/packages/stage with the files of the packages, and the program under test.
pub fn fill_stage() {
    let builder = Path::new(CHECKOUT).join("packaging/build");
    run(interpreter().arg(builder).args(["stage", "--any-glibc", "--binary", PROGRAM]));
}

/// Makes images of the stage in a folder, and returns what the builder printed.
pub fn build_image(folder: &Path, options: &[&str]) -> String {
    path_of("mmdebstrap");
    path_of("buildah");
    let mut builder = interpreter();
    builder.arg(Path::new(CHECKOUT).join("packaging/image")).arg(Path::new(CHECKOUT).join("target/packages/stage"));
    run(builder.args(options).arg("--output").arg(folder).env("SOURCE_DATE_EPOCH", "1700000000"))
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
