#!/bin/bash
# make.sh: makes the files that a guest boots from in the folder $WORK, unless they exist already. Part of guest.sh.
#
#   vmlinux       Debian's kernel, extracted from its package and never installed on this machine
#   base.cpio     the guest's root: busybox, ndctl, mke2fs, dmsetup, kernel modules, init
#   powerfail.so  the power-failure model, a plugin of QEMU
#
# Installs the Debian packages it needs. Each of the three files is made again when its inputs have changed.
fail() {
  echo "guest: $*" >&2
  exit 125
}

# Copies a file and the libraries it needs into the tree $1.
put() {
  local file
  for file in "$2" $(ldd "$2" 2>/dev/null | grep -o '/[^ ]*'); do
    [ -e "$1$file" ] && continue
    mkdir -p "$1${file%/*}"
    cp -L "$file" "$1$file"
  done
}

# Returns whether WORK/$1 was made from the inputs listed on standard input. Keeps that list for `made`.
STAMP=
fresh() {
  STAMP=$(cat)
  [ -s "$WORK/$1" ] && [ "$(cat "$WORK/$1.stamp" 2>/dev/null)" = "$STAMP" ]
}
made() { echo "$STAMP" >"$WORK/$1.stamp"; }
sums() { sha256sum "$@" | cut -d ' ' -f 1; }

# ---- packages ----
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=180 "$@" >&2; }

packages() {
  local missing=() file package
  while read -r file package; do [ -e "$file" ] || missing+=("$package"); done <<'LIST'
/usr/bin/qemu-system-x86_64 qemu-system-x86
/bin/busybox busybox-static
/usr/bin/ndctl ndctl
/sbin/mke2fs e2fsprogs
/sbin/dmsetup dmsetup
/sbin/depmod kmod
/usr/bin/cpio cpio
/usr/bin/xz xz-utils
/usr/bin/gcc gcc
LIST
  kernel_package >/dev/null || apt update || fail "apt-get update"
  [ ${#missing[@]} = 0 ] && return
  apt update || fail "apt-get update"
  apt install -y --no-install-recommends "${missing[@]}" || fail "apt-get install ${missing[*]}"
}

# ---- the kernel ----
# Prints name and version of the kernel's package in apt.
kernel_package() {
  local name version
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends:/ {print $2; exit}')
  version=$(apt-cache policy "$name" 2>/dev/null | awk '/Candidate:/ {print $2}')
  [ -n "$version" ] && echo "$name $version"
}

# Prints the number of $3 bytes at offset $2 of file $1.
number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

# Extracts the kernel from a bzImage, at the place that the boot protocol defines. So the guest need not unpack it.
unpack_image() {
  local image=$1 setup offset length
  setup=$(number "$image" 497 1)
  offset=$((((setup ? setup : 4) + 1) * 512 + $(number "$image" 584 4)))
  length=$(($(number "$image" 588 4) - 4))
  dd if="$image" bs=1M iflag=skip_bytes,count_bytes skip=$offset count=$length status=none >"$WORK/packed"
  case $(head -c 4 "$WORK/packed" | od -An -t x1 | tr -d ' ') in
    fd377a58) xz -dc <"$WORK/packed" ;;
    28b52ffd) zstd -dcq <"$WORK/packed" ;;
    *) false ;;
  esac >"$WORK/vmlinux.new" || cp "$image" "$WORK/vmlinux.new"
  mv "$WORK/vmlinux.new" "$WORK/vmlinux"
  rm "$WORK/packed"
}

kernel() {
  local package debs
  package=$(kernel_package) || fail "apt has no kernel package"
  fresh vmlinux <<<"$package" && return
  rm -rf "$WORK/kernel" "$WORK/debs"
  mkdir -p "$WORK/kernel" "$WORK/debs"
  (cd "$WORK/debs" && apt -o APT::Sandbox::User=root download "${package% *}") || fail "apt-get download ${package% *}"
  debs=("$WORK"/debs/*.deb)
  dpkg-deb --fsys-tarfile "${debs[0]}" | tar -C "$WORK/kernel" -x \
    --exclude='*/'{sound,gpu,media,wireless,ethernet,staging,iio,usb,scsi,hwmon,input} || fail "unpacking ${package% *}"
  rm -r "$WORK/debs"
  unpack_image "$WORK"/kernel/boot/vmlinuz-*
  made vmlinux
}

# ---- the root ----
MODULES=(nfit nd_pmem dax_pmem device_dax virtio_pci virtio_pmem ext4 crc32c_generic brd dm_log_writes dm_snapshot
  dummy rdma_rxe ib_uverbs rdma_ucm crc32_generic)

modules() {
  local root=$1 version=$2 from=$WORK/kernel to=$1/lib/modules/$2 file
  mkdir -p "$to"
  cp "$from/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$to/"
  depmod -b "$from" "$version"
  # -C: ignores a rule of ndctl's package that would hide needed modules.
  for module in "${MODULES[@]}"; do
    modprobe -C /dev/null -d "$from" -S "$version" --show-depends "$module" || fail "no module $module"
  done | awk '$1 == "insmod" {print $2}' | sort -u | while read -r file; do
    case $file in
      *.xz) xz -dc "$file" >"$to/$(basename "$file" .xz)" ;;
      *) cp "$file" "$to/" ;;
    esac
  done
  depmod -b "$root" "$version"
}

root() {
  local version root=$WORK/root
  version=$(basename "$WORK"/kernel/lib/modules/*)
  fresh base.cpio < <(cat "$WORK/vmlinux.stamp" && sums "$HERE"/{make.sh,init,arm.S}) && return
  rm -rf "$root"
  mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,mnt/pmem}
  ln -s bin "$root/sbin"
  cp /bin/busybox "$root/bin/"
  for applet in sh modprobe; do ln -s busybox "$root/bin/$applet"; done
  gcc -nostdlib -static -o "$root/bin/arm" "$HERE/arm.S" || fail "arm.S"
  for program in /sbin/mke2fs /usr/bin/ndctl /sbin/dmsetup; do put "$root" "$program"; done
  modules "$root" "$version"
  cp "$HERE/init" "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$WORK/base.cpio"
  made base.cpio
}

plugin() {
  fresh powerfail.so < <(sums "$HERE/powerfail.c") && return
  gcc -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -o "$WORK/powerfail.so" "$HERE/powerfail.c" ||
    fail "powerfail.c"
  made powerfail.so
}

make_guest() {
  packages
  kernel
  root
  plugin
}
