//! Roles and what each may do. Who has none may do nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::names::ModelName;
use crate::toml_check::from_text;

/// What a request asks for. Every route needs exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Whether this box lives: nobody needs a credential for that.
    Public,
    /// To look at models, figures and states.
    View,
    /// To ask a model.
    Infer,
    /// To read features.
    ReadFeatures,
    /// To push features.
    WriteFeatures,
    /// To load and unload models, and to step into updates.
    Operate,
    /// To take data out or away, and to change what is trusted.
    Administer,
    /// To read the audit log itself.
    Audit,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Public,
        Self::View,
        Self::Infer,
        Self::ReadFeatures,
        Self::WriteFeatures,
        Self::Operate,
        Self::Administer,
        Self::Audit,
    ];

    /// Its name in messages and in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::View => "view",
            Self::Infer => "infer",
            Self::ReadFeatures => "read_features",
            Self::WriteFeatures => "write_features",
            Self::Operate => "operate",
            Self::Administer => "administer",
            Self::Audit => "audit",
        }
    }
}

/// What somebody is to this box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Looks at models, figures and states.
    Viewer,
    /// Asks models, and reads features.
    Infer,
    /// Pushes and reads features.
    FeatureWriter,
    /// Looks after models and updates.
    Operator,
    /// May do everything.
    Admin,
    /// Reads the audit log.
    Auditor,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Viewer, Self::Infer, Self::FeatureWriter, Self::Operator, Self::Admin, Self::Auditor];

    /// As it is written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Infer => "infer",
            Self::FeatureWriter => "feature-writer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Auditor => "auditor",
        }
    }

    /// What it may do.
    pub fn permissions(self) -> &'static [Permission] {
        match self {
            Self::Viewer => &[Permission::Public, Permission::View],
            Self::Infer => &[Permission::Public, Permission::Infer, Permission::ReadFeatures],
            Self::FeatureWriter => &[Permission::Public, Permission::WriteFeatures, Permission::ReadFeatures],
            Self::Operator => &[Permission::Public, Permission::View, Permission::Operate],
            Self::Admin => &Permission::ALL,
            Self::Auditor => &[Permission::Public, Permission::View, Permission::Audit],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected one of viewer, infer, feature-writer, operator, admin, auditor, got {text:?}")]
pub struct InvalidRole {
    text: String,
}

impl FromStr for Role {
    type Err = InvalidRole;

    fn from_str(text: &str) -> Result<Self, InvalidRole> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| InvalidRole { text: text.chars().take(40).collect() })
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// What a caller may do, and with which models.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    roles: Arc<[Role]>,
    /// `None` is every model, those to come included.
    models: Option<Arc<[ModelName]>>,
}

impl Access {
    /// What these roles may do, with these models alone or with all.
    pub fn new(roles: impl IntoIterator<Item = Role>, models: Option<Vec<ModelName>>) -> Self {
        let mut roles: Vec<_> = roles.into_iter().collect();
        roles.sort_unstable();
        roles.dedup();
        Self { roles: roles.into(), models: models.map(Into::into) }
    }

    /// Everything: the daemon itself.
    pub fn everything() -> Self {
        Self::new([Role::Admin], None)
    }

    /// Its roles.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The models that it is for; `None` is all.
    pub fn models(&self) -> Option<&[ModelName]> {
        self.models.as_deref()
    }

    /// Whether this may be done, as far as no model is concerned.
    pub fn allows(&self, permission: Permission) -> bool {
        permission == Permission::Public || self.roles.iter().any(|role| role.permissions().contains(&permission))
    }

    /// Whether this may be done with that model.
    pub fn allows_model(&self, permission: Permission, model: &ModelName) -> bool {
        self.allows(permission) && self.has_model(model)
    }

    /// Whether that model is in its scope.
    pub fn has_model(&self, model: &ModelName) -> bool {
        self.models().is_none_or(|models| models.contains(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_role_may_do_nothing() {
        let none = Access::default();
        for permission in Permission::ALL {
            assert_eq!(none.allows(permission), permission == Permission::Public, "{permission:?}");
        }
    }

    #[test]
    fn only_an_admin_administers_and_only_an_auditor_beside_it_reads_the_log() {
        for role in Role::ALL {
            let access = Access::new([role], None);
            assert_eq!(access.allows(Permission::Administer), role == Role::Admin, "{role}");
            assert_eq!(access.allows(Permission::Audit), matches!(role, Role::Admin | Role::Auditor), "{role}");
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("Admin".parse::<Role>().is_err());
    }

    #[test]
    fn a_scope_holds_for_every_role() {
        let (ours, theirs): (ModelName, ModelName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let access = Access::new([Role::Admin], Some(vec![ours.clone()]));
        assert!(access.allows_model(Permission::Infer, &ours));
        assert!(!access.allows_model(Permission::Infer, &theirs));
        assert!(Access::everything().allows_model(Permission::Operate, &theirs));
    }
}
