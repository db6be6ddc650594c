import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def closure_train():
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(64, 3), torch.randn(64, 1)), batch_size=16, shuffle=True)
    step = 0
    done = False
    while not done:
        for x, y in data:
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 3 == 0:
                print("step %d loss %.5f" % (step, loss))
            if step >= 9:
                done = True
                break
    return net
if __name__ == "__main__":
    net = closure_train()
    torch.save(net.state_dict(), "n.pt")
    print(sum(p.numel() for p in net.parameters()))
    print(net.weight.shape)
