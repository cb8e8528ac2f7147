//! The types of the page: the TypeScript compiler reads its comments, and the shapes of answers from `/openapi.json`.

use std::path::Path;
use std::process::Command;

use crate::daemon::{setup_root, write};
use crate::tools::{interpreter, path_of, run};

/// What the compiler says of the page's files in a folder; nothing where all is right.
fn complaints(page: &Path) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = setup_root().join("peers/typescript/node_modules/typescript/bin/tsc");
    assert!(compiler.exists(), "{} is missing: `make setup-typescript` gets it", compiler.display());
    let folder = tempfile::tempdir().unwrap();
    let declared = run(interpreter().arg("-B").arg(here.join("tests/peers/typescript/api.py")));
    write(&folder.path().join("api.d.ts"), declared.as_bytes());
    let options = serde_json::json!({
        "compilerOptions": {"checkJs": true, "allowJs": true, "noEmit": true, "strict": false, "target": "ES2023",
            "module": "ES2022", "moduleResolution": "bundler", "lib": ["ES2024", "DOM", "DOM.Iterable"], "types": []},
        "include": ["api.d.ts", page.join("*.js")],
    });
    let project = folder.path().join("tsconfig.json");
    write(&project, options.to_string().as_bytes());
    let output = Command::new(path_of("node")).arg(compiler).arg("-p").arg(project).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_page_has_no_error_of_types_and_one_is_found() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console/page");
    for entry in std::fs::read_dir(&page).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "js") {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("// @ts-check\n"), "{}", path.display());
        }
    }
    assert_eq!(complaints(&page), "");

    // A member that no answer of this call has.
    let wrong = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&page).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, wrong.path().join(path.file_name().unwrap())).unwrap();
    }
    let jobs = std::fs::read_to_string(page.join("jobs.js")).unwrap();
    write(&wrong.path().join("jobs.js"), jobs.replacen("{ jobs: all }", "{ tasks: all }", 1).as_bytes());
    assert!(complaints(wrong.path()).contains("Property 'tasks' does not exist"), "{}", complaints(wrong.path()));
}
