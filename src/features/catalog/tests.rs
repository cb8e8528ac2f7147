use super::*;
use crate::registry::Registry;

fn view(schema: &str) -> FeatureView {
    let text = format!(
        "entity = [{{ name = 'm', join_key = 'id' }}]\nfeature_view = [{{ name = 'v', entities = ['m'], schema = [{schema}] }}]"
    );
    FeatureView::clone(Registry::parse(&text).unwrap().view("v").unwrap())
}

fn field(name: &str, dtype: &str) -> String {
    format!("{{ name = '{name}', dtype = '{dtype}' }}")
}

fn catalog() -> ViewCatalog {
    let mut catalog = ViewCatalog::default();
    catalog.admit(&mut view(&[field("a", "Int64"), field("b", "Array(Float32)")].join(","))).unwrap();
    catalog
}

fn ids(view: &FeatureView) -> Vec<u16> {
    view.fields.iter().map(|field| field.id.0).collect()
}

#[test]
fn a_name_keeps_its_number_and_none_is_given_twice() {
    let mut catalog = ViewCatalog::default();
    let mut first = view(&[field("a", "Int64"), field("b", "Int64")].join(","));
    catalog.admit(&mut first).unwrap();
    assert_eq!((first.id, ids(&first)), (ViewId(1), vec![1, 2]));
    let kept = catalog.clone();
    catalog.admit(&mut first).unwrap();
    assert_eq!(catalog, kept, "nothing is new");

    // b is removed, c is new, b is declared again.
    let mut second = view(&[field("c", "Int64"), field("a", "Int64")].join(","));
    catalog.admit(&mut second).unwrap();
    assert_eq!(ids(&second), [3, 1]);
    let mut third = view(&[field("b", "Int64"), field("d", "Int64")].join(","));
    catalog.admit(&mut third).unwrap();
    assert_eq!(ids(&third), [2, 4]);
    assert_eq!(catalog.generation(), 3);

    third.name = "w".into();
    catalog.admit(&mut third).unwrap();
    assert_eq!((third.id, ids(&third)), (ViewId(2), vec![1, 2]));
}

#[test]
fn another_type_or_key_is_refused_with_the_way_out() {
    let mut catalog = catalog();
    let mut changed = view(&[field("a", "Float32"), field("b", "Float32")].join(","));
    changed.join_keys[0].value_type = ScalarType::Int64;
    let conflicts: Vec<String> = catalog.admit(&mut changed).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        conflicts,
        [
            "the join keys of feature view 'v' were id (String) and are id (Int64) now: give the view another name, such as 'v_v2'; what is stored keeps its keys",
            "feature 'a' of feature view 'v' was Int64 and is Float32 now: give it another name, such as 'a_v2'; what is stored keeps its type",
            "feature 'b' of feature view 'v' was Array(Float32) and is Float32 now: give it another name, such as 'b_v2'; what is stored keeps its type",
        ]
    );
}

#[test]
fn the_way_out_works() {
    let mut catalog = catalog();
    let mut renamed = view(&[field("a_v2", "Float32"), field("b", "Array(Float32)")].join(","));
    catalog.admit(&mut renamed).unwrap();
    assert_eq!(ids(&renamed), [3, 2]);
}

#[test]
fn numbers_run_out_without_starting_over() {
    let mut catalog = catalog();
    catalog.views.get_mut("v").unwrap().last_field = u16::MAX;
    let conflicts = catalog.admit(&mut view(&field("new", "Int64"))).unwrap_err();
    assert_eq!(conflicts, [ViewSchemaConflict::Exhausted { view: "v".into() }]);
    catalog.last_view = u32::MAX;
    let mut other = view(&field("a", "Int64"));
    other.name = "w".into();
    assert_eq!(catalog.admit(&mut other), Err(vec![ViewSchemaConflict::Exhausted { view: "w".into() }]));
}

#[test]
fn a_changed_byte_of_the_text_is_noticed() {
    let catalog = catalog();
    let text = catalog.to_json();
    assert_eq!(ViewCatalog::from_json(&text).unwrap(), catalog);
    for at in 0..text.len() {
        for change in 1..=255 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= change;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(ViewCatalog::from_json(&changed).is_err(), "{changed}");
        }
    }
    for end in 0..text.len() {
        assert!(ViewCatalog::from_json(&text[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn a_later_form_is_told_from_damage() {
    let text = catalog().to_json().replacen("\"format\":1", "\"format\":2", 1);
    assert!(matches!(ViewCatalog::from_json(&text), Err(CatalogError::Unknown)));
}

/// A store's folder with a catalog in both files.
fn store() -> (tempfile::TempDir, ViewCatalog) {
    let folder = tempfile::tempdir().unwrap();
    let catalog = catalog();
    catalog.save(folder.path()).unwrap();
    (folder, catalog)
}

#[test]
fn either_file_is_enough() {
    for file in FILE_NAMES {
        for content in [Some(b"{\"format\":1".as_slice()), Some(b"\xff"), Some(b""), None] {
            let (folder, catalog) = store();
            assert_eq!(ViewCatalog::read(folder.path()).unwrap(), (catalog.clone(), true));
            let path = folder.path().join(file);
            match content {
                Some(content) => durable::replace(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert_eq!(ViewCatalog::read(folder.path()).unwrap(), (catalog.clone(), false), "{file}");
            catalog.save(folder.path()).unwrap();
            assert_eq!(ViewCatalog::read(folder.path()).unwrap(), (catalog, true), "{file}");
        }
    }
}

#[test]
fn of_two_good_files_the_newer_one_counts() {
    for file in FILE_NAMES {
        let (folder, mut catalog) = store();
        catalog.admit(&mut view(&field("c", "Bool"))).unwrap();
        // As after a power cut between the two.
        durable::replace(&folder.path().join(file), catalog.to_json().as_bytes()).unwrap();
        assert_eq!(ViewCatalog::read(folder.path()).unwrap(), (catalog, false), "{file}");
    }
}

#[test]
fn without_a_good_file_nothing_is_made_up() {
    let (folder, _) = store();
    for file in FILE_NAMES {
        durable::replace(&folder.path().join(file), b"{}").unwrap();
    }
    let message = ViewCatalog::read(folder.path()).unwrap_err().to_string();
    let expected = format!(
        "neither catalog.json nor catalog.copy.json of the feature store can be used (catalog.json: it is damaged; \
         catalog.copy.json: it is damaged): restore a backup with `ledge features restore`, or move {} away to start with \
         an empty store",
        folder.path().display()
    );
    assert_eq!(message, expected);

    for file in FILE_NAMES {
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_eq!(
        ViewCatalog::read(folder.path()).unwrap(),
        (ViewCatalog::default(), true),
        "an empty folder is an empty store"
    );
    std::fs::create_dir(folder.path().join("journal")).unwrap();
    let message = ViewCatalog::read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("both are missing, but the store has data"), "{message}");
}

#[test]
fn a_catalog_is_saved_where_there_was_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a/b");
    assert_eq!(ViewCatalog::read(&store).unwrap(), (ViewCatalog::default(), true));
    catalog().save(&store).unwrap();
    assert_eq!(ViewCatalog::read(&store).unwrap(), (catalog(), true));
}
