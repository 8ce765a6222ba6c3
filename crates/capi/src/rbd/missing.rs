//! What is not there yet: each answers that it is not supported, or nothing. docs/rbd.md lists them.

use crate::missing::missing;
use std::ffi::c_int;

missing! { () = ();
    rbd_mirror_image_get_info_cleanup
    rbd_mirror_image_global_status_cleanup
    rbd_mirror_image_global_status_list_cleanup
    rbd_mirror_image_info_list_cleanup
    rbd_mirror_image_instance_id_list_cleanup
    rbd_mirror_image_status_list_cleanup
    rbd_mirror_peer_list_cleanup
    rbd_mirror_peer_site_list_cleanup
    rbd_quiesce_complete
}

missing! { c_int = -libc::EOPNOTSUPP;
    rbd_aio_mirror_image_create_snapshot
    rbd_aio_mirror_image_demote
    rbd_aio_mirror_image_get_global_status
    rbd_aio_mirror_image_get_info
    rbd_aio_mirror_image_get_mode
    rbd_aio_mirror_image_get_status
    rbd_aio_mirror_image_promote
    rbd_encryption_format
    rbd_encryption_load
    rbd_get_migration_source_spec
    rbd_migration_prepare_import
    rbd_mirror_image_create_snapshot
    rbd_mirror_image_create_snapshot2
    rbd_mirror_image_demote
    rbd_mirror_image_disable
    rbd_mirror_image_enable
    rbd_mirror_image_enable2
    rbd_mirror_image_get_global_status
    rbd_mirror_image_get_info
    rbd_mirror_image_get_instance_id
    rbd_mirror_image_get_mode
    rbd_mirror_image_get_status
    rbd_mirror_image_global_status_list
    rbd_mirror_image_info_list
    rbd_mirror_image_instance_id_list
    rbd_mirror_image_promote
    rbd_mirror_image_resync
    rbd_mirror_image_status_list
    rbd_mirror_image_status_summary
    rbd_mirror_mode_get
    rbd_mirror_mode_set
    rbd_mirror_peer_add
    rbd_mirror_peer_bootstrap_create
    rbd_mirror_peer_bootstrap_import
    rbd_mirror_peer_get_attributes
    rbd_mirror_peer_list
    rbd_mirror_peer_remove
    rbd_mirror_peer_set_attributes
    rbd_mirror_peer_set_client
    rbd_mirror_peer_set_cluster
    rbd_mirror_peer_site_add
    rbd_mirror_peer_site_get_attributes
    rbd_mirror_peer_site_list
    rbd_mirror_peer_site_remove
    rbd_mirror_peer_site_set_attributes
    rbd_mirror_peer_site_set_client_name
    rbd_mirror_peer_site_set_direction
    rbd_mirror_peer_site_set_name
    rbd_mirror_site_name_get
    rbd_mirror_site_name_set
    rbd_mirror_uuid_get
    rbd_quiesce_unwatch
    rbd_quiesce_watch
    rbd_read_iterate2
    rbd_rebuild_object_map
    rbd_snap_get_mirror_namespace
    rbd_snap_get_trash_namespace
    rbd_snap_mirror_namespace_cleanup
    rbd_sparsify
    rbd_sparsify_with_progress
    rbd_update_unwatch
    rbd_update_watch
}

missing! { i64 = -(libc::EOPNOTSUPP as i64);
    rbd_read_iterate
}

missing! { isize = -(libc::EOPNOTSUPP as isize);
    rbd_aio_compare_and_write
    rbd_compare_and_write
}
