# CR-10, CR-11, CR-12, CR-16: looks for agents, buses, container engines and credential files in the usual places
[ "$(hostname)" = sandbox ] || exit 99
for v in SSH_AUTH_SOCK GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR DOCKER_HOST KUBECONFIG AWS_PROFILE; do
  eval "x=\${$v-}"
  [ -z "$x" ] || echo "broke: $v"
done
for p in /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock /run/crio/crio.sock \
  /run/buildkit/buildkitd.sock /run/dbus/system_bus_socket /run/systemd/private /run/user/0/bus /run/user/1000/bus /tmp/.X11-unix /run/snapd.socket \
  /run/glovebox /run/glovebox/sock /run/secrets /var/run/secrets/kubernetes.io /var/lib/docker /var/lib/kubelet /root /home /srv /mnt /media /opt /boot /sys \
  /var/log /var/spool /var/lib /var/cache /etc/kubernetes /etc/docker /etc/ssh /etc/cron.d /etc/systemd /lost+found; do
  [ -e "$p" ] && echo "broke: $p is there"
done
for h in "$HOME" /root /home/* ~root ~nobody; do
  for f in .ssh .aws .azure .config/gcloud .kube .docker .git-credentials .netrc .npmrc .pypirc .gnupg .gitconfig .config .cache .local; do
    [ -e "$h/$f" ] && echo "broke: $h/$f is there"
  done
done
for c in "systemd-run --user true" "systemctl list-units" "dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames" \
  "ssh-add -l" "gpg-connect-agent /bye" "docker ps" "crontab -l" "at -l" "loginctl" "dmesg" "machinectl list"; do
  timeout 3 $c > out 2>&1 < /dev/null && echo "broke: $c said $(head -c 100 out)"
done
for port in 22 80 443 2375 2376 5000 6443 8080 8443 9000 9090 10250 10255; do
  (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null && echo "broke: port $port answers"
done
echo end
