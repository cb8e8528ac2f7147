use std::fs;
use std::path::Path;

use ledge_egress::{Egress, EgressConfig};
use ledge_part::section::ConfigSection as _;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::UpdatesConfig;
use crate::trust::tests::signer::{Signer, sha256};

/// A catalogue in a folder, and a box with a model repository.
struct Fixture {
    signer: Signer,
    here: tempfile::TempDir,
}

const FILES: [(&str, &[u8]); 3] =
    [("m/model.toml", b"runtime = 'auto'"), ("m/1/model.onnx", b"weights"), ("m/golden/row.json", b"{}")];

impl Fixture {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let mut signer = Signer::new();
        for (path, content) in files {
            signer.list("targets", path, content);
            signer.put(path, content);
        }
        signer.publish();
        Self { signer, here: tempfile::tempdir().unwrap() }
    }

    fn repository(&self) -> std::path::PathBuf {
        self.here.path().join("models")
    }

    fn open(&self) -> Catalogue {
        let mut config = CatalogueConfig { root_file: self.signer.root_file(), ..CatalogueConfig::default() };
        config.resolve(self.here.path());
        let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
        let limits = DownloadLimits { min_free_bytes: 0, ..DownloadLimits::new(&UpdatesConfig::default()) };
        Catalogue::open(&config, Some(&self.signer.address()), &egress, limits).unwrap()
    }

    async fn add(&self) -> Result<std::path::PathBuf, CatalogueError> {
        let mut catalogue = self.open();
        let models = catalogue.models().await?;
        let model = models.first().unwrap();
        catalogue.fetch(model, |_| ControlFlow::Continue(())).await?;
        Ok(catalogue.install(model, &self.repository(), || Ok(()))?.folder)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_model_is_added_whole_and_its_downloads_are_removed() {
    let fixture = Fixture::new(&FILES);
    let folder = fixture.add().await.unwrap();
    for (path, content) in FILES {
        assert_eq!(fs::read(fixture.repository().join(path)).unwrap(), content, "{path}");
    }
    assert_eq!(names(&folder), [".catalogue.sha256", "1", "golden", "model.toml"]);
    assert_eq!(names(&fixture.repository()), ["m"]);
    assert_eq!(names(&fixture.here.path().join("catalogue/blobs")), [""; 0]);
    assert!(matches!(fixture.add().await, Err(CatalogueError::Exists { .. })));
}

#[tokio::test]
async fn a_file_that_was_not_signed_is_not_added() {
    let fixture = Fixture::new(&FILES);
    let location = format!("m/1/{}.model.onnx", sha256(b"weights"));
    fixture.signer.put_at(&location, b"WEIGHTS");
    assert!(matches!(fixture.add().await, Err(CatalogueError::Fetch { .. })));
    assert!(!fixture.repository().exists());
}

#[tokio::test]
async fn a_model_with_a_path_that_leads_elsewhere_is_listed_and_not_added() {
    for path in ["m/../x", "m/.catalogue.sha256", "m/a/b/c/d", "m//x", "m/a b", "m"] {
        let fixture = Fixture::new(&[FILES[0], (path, b"x")]);
        let models = fixture.open().models().await.unwrap();
        assert!(models[0].problem.as_ref().is_some_and(|problem| problem.contains(&format!("{path:?}"))), "{path}");
        assert!(matches!(fixture.add().await, Err(CatalogueError::Unusable { .. })), "{path}");
    }
}

#[tokio::test]
async fn one_command_at_a_time_uses_the_catalogue() {
    let fixture = Fixture::new(&FILES);
    let _first = fixture.open();
    let mut config = CatalogueConfig { root_file: fixture.signer.root_file(), ..CatalogueConfig::default() };
    config.resolve(fixture.here.path());
    let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
    let limits = DownloadLimits::new(&UpdatesConfig::default());
    let second = Catalogue::open(&config, Some(&fixture.signer.address()), &egress, limits);
    assert!(matches!(second, Err(CatalogueError::Busy { .. })));
}

#[tokio::test]
async fn only_what_the_catalogue_brought_is_removed_without_force() {
    let fixture = Fixture::new(&FILES);
    let name: ModelName = "m".parse().unwrap();
    let remove = |force| remove(&fixture.repository(), &name, force);
    assert!(matches!(remove(true), Err(CatalogueError::NoModel { .. })));

    let folder = fixture.add().await.unwrap();
    let own = |expected: &str| match remove(false) {
        Err(CatalogueError::Own { what, .. }) => assert_eq!(what, expected),
        other => panic!("{other:?}"),
    };
    fs::create_dir(folder.join("2")).unwrap();
    ledge_base::durable::replace(&folder.join("2/model.onnx"), b"mine").unwrap();
    own("2/model.onnx was added");
    fs::remove_dir_all(folder.join("2")).unwrap();
    ledge_base::durable::replace(&folder.join("model.toml"), b"runtime = 'openvino'").unwrap();
    own("model.toml was changed");
    ledge_base::durable::replace(&folder.join("model.toml"), FILES[0].1).unwrap();
    remove(false).unwrap();
    assert_eq!(names(&fixture.repository()), [""; 0]);

    fs::create_dir(&folder).unwrap();
    own("no catalogue and no upload brought it");
    remove(true).unwrap();
    std::os::unix::fs::symlink("/", &folder).unwrap();
    assert!(matches!(remove(true), Err(CatalogueError::Link { .. })));
}

#[tokio::test]
async fn the_list_tells_what_is_there_already() {
    let mut fixture = Fixture::new(&FILES);
    let presence = async |fixture: &Fixture| {
        let models = fixture.open().models().await.unwrap();
        models[0].presence(&fixture.repository())
    };
    assert_eq!(presence(&fixture).await, CataloguePresence::Absent);
    let folder = fixture.add().await.unwrap();
    assert_eq!(presence(&fixture).await, CataloguePresence::Added);
    fixture.signer.list("targets", "m/1/model.onnx", b"better");
    fixture.signer.bump();
    fixture.signer.publish();
    assert_eq!(presence(&fixture).await, CataloguePresence::Outdated);
    fs::remove_file(folder.join(".catalogue.sha256")).unwrap();
    assert_eq!(presence(&fixture).await, CataloguePresence::Own);
}

#[test]
fn a_description_is_read_without_control_characters() {
    let text = json!({"description": "Finds\u{1b}[31m cats", "license": "MIT", "size": 3}).to_string();
    let of = |custom| {
        let (path, sha256, location) = ("m/model.toml".to_owned(), "0".repeat(64), String::new());
        CatalogueDescription::of(&TufTarget { path, length: 1, sha256, custom, location })
    };
    let read = of(Some(json!({"ledge": text})));
    assert_eq!((read.description.as_deref(), read.license.as_deref()), (Some("Finds[31m cats"), Some("MIT")));
    for none in [None, Some(json!({})), Some(json!({"ledge": "{"})), Some(json!({"ledge": {"license": "x"}}))] {
        assert_eq!(of(none), CatalogueDescription::default());
    }
}

proptest! {
    #[test]
    fn a_path_stays_below_the_folder_of_its_model(path in "[a-zA-Z./\\\\\0 é]{0,20}") {
        let Ok(inside) = path_in_folder(&path) else { return Ok(()) };
        let joined = Path::new("/models/m").join(inside);
        let components: Vec<_> = joined.components().collect();
        prop_assert!(components.iter().all(|part| !matches!(part, std::path::Component::ParentDir)));
        prop_assert!(joined.starts_with("/models/m") && components.len() > 3);
        prop_assert!(inside.split('/').all(|part| !part.starts_with('.') && !part.is_empty()));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test does not need a durable file")]
fn a_package_names_a_catalogue_for_a_box_that_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("publisher.toml");
    let mut config = CatalogueConfig { publisher_file: file.clone(), ..CatalogueConfig::default() };
    config.resolve(folder.path());
    assert_eq!(config.source(None).unwrap(), None);

    let address = |text: &str| text.parse::<RepositoryAddress>().unwrap();
    let source = |address, root: &Path| CatalogueSource { address, root_file: root.to_owned() };
    let (published, own) = (address("https://models.example.com/"), address("https://own.example.com/"));
    let root = Path::new("/usr/share/ledge/catalogue-root.json");
    fs::write(
        &file,
        "[catalogue]\naddress = 'https://models.example.com/'\nroot_file = '/usr/share/ledge/catalogue-root.json'\n",
    )
    .unwrap();
    assert_eq!(config.source(None).unwrap(), Some(source(published, root)));
    // A stick, with the same models.
    assert_eq!(config.source(Some(&own)).unwrap(), Some(source(own.clone(), root)));

    config.address = Some(own.clone());
    let own_root = config.root_file.clone();
    fs::write(&own_root, "{}").unwrap();
    assert_eq!(config.source(None).unwrap(), Some(source(own.clone(), &own_root)));

    fs::write(&file, "[catalogue]\naddress = 7\n").unwrap();
    assert_eq!(config.source(None).unwrap(), Some(source(own, &own_root)), "it needs nothing of that file");
    config.address = None;
    let error = config.source(None).unwrap_err().to_string();
    assert!(error.contains("publisher.toml:2: catalogue.address"), "{error}");
}
