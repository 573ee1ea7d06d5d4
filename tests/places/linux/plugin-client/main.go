// Asks a device plugin what a kubelet asks it: which devices it has, and what a container gets with the first of them.
//
//	plugin-client SOCKET
//
// Prints a line for each device, and one for each environment variable, mount and device file of the allocation.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plugin-client SOCKET")
		os.Exit(2)
	}
	if err := ask(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "plugin-client: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func ask(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	plugin := api.NewDevicePluginClient(connection)
	watch, err := plugin.ListAndWatch(ctx, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	list, err := watch.Recv()
	if err != nil {
		return err
	}
	var names []string
	for _, device := range list.Devices {
		fmt.Println("device", device.ID, device.Health)
		names = append(names, device.ID)
	}
	if len(names) == 0 {
		return nil
	}
	sort.Strings(names)
	container := &api.ContainerAllocateRequest{DevicesIds: names[:1]}
	given, err := plugin.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{container}})
	if err != nil {
		return err
	}
	for _, response := range given.ContainerResponses {
		for name, value := range response.Envs {
			fmt.Printf("env %s=%s\n", name, value)
		}
		for _, mount := range response.Mounts {
			fmt.Println("mount", mount.HostPath)
		}
		for _, file := range response.Devices {
			fmt.Println("file", file.HostPath, file.Permissions)
		}
	}
	return nil
}
